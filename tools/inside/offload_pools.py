"""Serve requests from a pool that offloads to host memory; write what is copied.

Usage: python -m tools.inside.offload_pools FILE

FILE holds the setting and the requests, and gets the result, one JSON object each.
`tools.replay.offload` runs it in the serving environment. The managers of both sides
are the real ones. Every full block is stored, and what the pool has lost is loaded;
a transfer ends one step after it began.
"""

import json
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadKey,
    ReqContext,
    make_offload_key,
)
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.tagma_manager import TagmaCPUOffloadingManager
from vllm.v1.request import Request

from tools.inside.pair_pool import Pool, Setting
from tools.inside.pair_turn import BLOCK_SIZE, Transfer, Turn

MANAGERS = {"paged": CPUOffloadingManager, "tagma": TagmaCPUOffloadingManager}


class Running:
    """A request that holds blocks, and its keys in host memory."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.request: Request = turn.request("device")
        self.context = ReqContext(self.request.request_id)
        self.keys: list[OffloadKey] = []
        self.num_stored = 0

    def add_keys(self) -> None:
        """Make the keys of all full blocks."""
        for block_hash in self.request.block_hashes[len(self.keys) :]:
            key = make_offload_key(block_hash, 0)
            self.keys.append(key)
            self.context.set_offload_key_position(key, len(self.keys) * BLOCK_SIZE)


class Server:
    """A pool with host memory behind it.

    Args:
        setting: Of the pool.
        host: Whose manager places the chunks: "paged" is upstream's.
        num_chunks: Blocks that the host has memory for.
        turns: The requests.
    """

    def __init__(
        self, setting: Setting, host: str, num_chunks: int, turns: Iterable[Turn]
    ) -> None:
        self._setting = setting
        self.pool = Pool(setting, setting.decode_share)
        self.host: CPUOffloadingManager = MANAGERS[host](num_chunks)
        self._waiting = deque(turns)
        self._running: dict[Running, None] = {}
        self._ending: list[tuple[Running, list[OffloadKey], bool]] = []
        self.stores: list[Transfer] = []
        self.loads: list[Transfer] = []
        self.loaded_tokens = 0
        self.num_preempted = 0

    def run(self) -> None:
        """Serve all requests."""
        while self._waiting or self._running:
            self.pool.begin_step()
            self._end_transfers()
            while self._waiting and self.pool.has_room(self._waiting[0].num_blocks):
                self._admit(Running(self._waiting.popleft()))
            for running in list(self._running):
                self._decode(running)
            self.pool.end_step()
        self._end_transfers()

    def _end_transfers(self) -> None:
        for running, keys, is_store in self._ending:
            complete = self.host.complete_store if is_store else self.host.complete_load
            complete(keys, running.context)
        self._ending.clear()

    def _admit(self, running: Running) -> None:
        """Look a prompt up in the pool, then in host memory, and compute the rest."""
        request, manager = running.request, self.pool.manager
        running.add_keys()
        self.host.on_new_request(running.context)
        hit, num_hits, *_ = manager.get_computed_blocks(request)
        self.pool.hit_tokens += num_hits
        first = num_hits // BLOCK_SIZE
        found = self._find(running, first, (running.turn.prompt - 1) // BLOCK_SIZE)
        if found:
            manager.allocate_slots(
                request, 0, num_hits, hit,
                num_external_computed_tokens=len(found) * BLOCK_SIZE,
                delay_cache_blocks=True,
            )  # fmt: skip
            self._load(running, first, found)
            request.num_computed_tokens = num_hits + len(found) * BLOCK_SIZE
            manager.cache_blocks(request, request.num_computed_tokens)
            hit, num_hits = None, 0
        computed = request.num_computed_tokens + num_hits
        got = manager.allocate_slots(
            request, running.turn.prompt - computed, num_hits, hit
        )
        if got is None:
            raise RuntimeError("the pool has room and gives none")
        request.num_computed_tokens = running.turn.prompt
        self._running[running] = None
        running.num_stored = first + len(found)
        self._store(running)

    def _find(self, running: Running, first: int, last: int) -> list[OffloadKey]:
        found = []
        for key in running.keys[first:last]:
            if self.host.lookup(key, running.context) is not LookupResult.HIT:
                break
            found.append(key)
        self.host.touch(running.keys[:last], running.context)
        return found

    def _load(self, running: Running, first: int, keys: list[OffloadKey]) -> None:
        spec = self.host.prepare_load(keys, running.context)
        blocks = self.pool.ids(running.request)[first : first + len(keys)]
        chunks = spec.block_ids.tolist()
        self.loads.append(Transfer(running.turn.number, chunks, blocks))
        self.loaded_tokens += len(keys) * BLOCK_SIZE
        self._ending.append((running, keys, False))

    def _store(self, running: Running) -> None:
        """Store full blocks that host memory lacks."""
        running.add_keys()
        full = running.request.num_computed_tokens // BLOCK_SIZE
        offered = running.keys[running.num_stored : full]
        if not offered:
            return
        output = self.host.prepare_store(offered, running.context)
        if output is not None and output.keys_to_store:
            ids = self.pool.ids(running.request)
            at = {
                key: ids[index] for index, key in enumerate(offered, running.num_stored)
            }
            blocks = [at[key] for key in output.keys_to_store]
            chunks = output.store_spec.block_ids.tolist()
            self.stores.append(Transfer(running.turn.number, blocks, chunks))
            self._ending.append((running, list(output.keys_to_store), True))
        running.num_stored = full

    def _decode(self, running: Running) -> None:
        if running not in self._running:
            return
        turn = running.turn
        tokens = min(self._setting.tokens_a_step, turn.output - turn.decoded)
        running.request.append_output_token_ids([1] * tokens)
        while not self.pool.allocate(running.request, tokens):
            last = next(reversed(self._running))
            self._end(last)
            self.num_preempted += 1
            if last is running:
                return
        turn.decoded += tokens
        if turn.decoded == turn.output:
            self._store(running)
            self._end(running)

    def _end(self, running: Running) -> None:
        del self._running[running]
        self.pool.manager.free(running.request)
        self.host.on_request_finished(running.context)


def serve(given: dict[str, Any]) -> dict[str, Any]:
    """Serve requests and return the copies of both directions, and the hits."""
    setting = Setting(**given["setting"])
    turns = (Turn(n, *request) for n, request in enumerate(given["requests"]))
    server = Server(setting, given["host"], given["num_chunks"], turns)
    server.run()
    size = given["kept_blocks"]
    return {
        "hit_tokens": server.pool.hit_tokens,
        "loaded_tokens": server.loaded_tokens,
        "preempted": server.num_preempted,
    } | {
        name: {
            "transfers": [transfer.counts() for transfer in transfers],
            "kept": min(
                (t.runs() for t in transfers),
                key=lambda runs: abs(sum(count for *_, count in runs) - size),
            ),
        }
        for name, transfers in (("stores", server.stores), ("loads", server.loads))
    }


def main(file: Path) -> None:
    """Serve what the file says, and write the result into it."""
    init_none_hash(sha256)
    file.write_text(json.dumps(serve(json.loads(file.read_text()))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
