"""Serve requests from a prefill and a decode pool and write what is transferred.

Usage: python -m tools.inside.transfer_pools FILE

FILE holds the setting and the requests, and gets the result, one JSON object each.
`tools.replay.transfer` runs it in the serving environment. The managers are the real
ones, paged's or tagma's on both sides; what they decide follows from the requests
alone, so both get the same decisions. Time passes in steps.
"""

import json
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.request import Request

from tools.inside.pair_pool import Pool, Setting
from tools.inside.pair_turn import BLOCK_SIZE, Transfer, Turn


class Pair:
    """A prefill and a decode pool that serve the same requests.

    Args:
        setting: What is run.
        turns: The requests.
    """

    def __init__(self, setting: Setting, turns: Iterable[Turn]) -> None:
        self._setting = setting
        self._waiting = deque(turns)
        self.prefill = Pool(setting, setting.prefill_share)
        self.decode = Pool(setting, setting.decode_share)
        self._prefilling: list[Turn] = []
        self._decoding: dict[Turn, None] = {}
        self._held: list[tuple[int, Turn]] = []
        self._step = 0
        self.num_preempted = 0
        self.transfers: list[tuple[int, int, int, int, int]] = []
        self.kept: dict[int, list[tuple[int, int, int]]] = {}

    def run(self) -> None:
        """Serve all requests."""
        while self._waiting or self._prefilling or self._decoding or self._held:
            self._step += 1
            self._serve()

    def _serve(self) -> None:
        self.prefill.begin_step()
        self.decode.begin_step()
        for turn in [turn for step, turn in self._held if step <= self._step]:
            self.prefill.manager.free(turn.prefill)
        self._held = [(step, turn) for step, turn in self._held if step > self._step]
        self._admit()
        for turn in self._compute():
            self._transfer(turn)
        self._decode()
        self.prefill.end_step()
        self.decode.end_step()

    def _admit(self) -> None:
        while self._waiting and len(self._prefilling) < self._setting.max_prefilling:
            turn = self._waiting[0]
            needed = sum(t.num_blocks for t in (*self._prefilling, turn))
            begun = sum(
                t.prefill.num_computed_tokens // BLOCK_SIZE for t in self._prefilling
            )
            if not self.prefill.has_room(needed - begun):
                return
            if not self.decode.has_room(needed):
                return
            self._waiting.popleft()
            turn.prefill = turn.request("prefill")
            self._prefilling.append(turn)

    def _compute(self) -> list[Turn]:
        """Compute chunks of prompts and return those that are whole."""
        budget, done = self._setting.token_budget, []
        for turn in self._prefilling.copy():
            if budget <= 0:
                break
            request = turn.prefill
            before = request.num_computed_tokens
            chunk = turn.prompt - before
            if before == 0:
                chunk = min(chunk, budget + self._hit_tokens(request))
            else:
                chunk = min(chunk, budget)
            if not self.prefill.allocate(request, chunk):
                break
            budget -= chunk
            if request.num_computed_tokens == turn.prompt:
                self._prefilling.remove(turn)
                done.append(turn)
        return done

    def _hit_tokens(self, request: Request) -> int:
        return int(self.prefill.manager.get_computed_blocks(request)[1])

    def _transfer(self, turn: Turn) -> None:
        """Let the decode side load a prompt that is computed."""
        manager = self.decode.manager
        turn.decode = turn.request("decode")
        hits = self.decode.hit_tokens
        if not self.decode.allocate(turn.decode, turn.prompt, external=True):
            self.prefill.manager.free(turn.prefill)
            self.num_preempted += 1
            return
        first = (self.decode.hit_tokens - hits) // BLOCK_SIZE
        sources = self.prefill.ids(turn.prefill)[first : turn.num_blocks]
        targets = self.decode.ids(turn.decode)[first : turn.num_blocks]
        transfer = Transfer(turn.number, sources, targets)
        self.transfers.append(transfer.counts())
        if turn.number in self._setting.kept:
            self.kept[turn.number] = transfer.runs()
        manager.cache_blocks(turn.decode, turn.prompt)
        self._decoding[turn] = None
        wait = 1 + turn.number * 7919 % self._setting.hold_steps
        self._held.append((self._step + wait, turn))

    def _decode(self) -> None:
        for turn in list(self._decoding):
            if turn not in self._decoding:
                continue
            tokens = min(self._setting.tokens_a_step, turn.output - turn.decoded)
            turn.decode.append_output_token_ids([1] * tokens)
            while not self.decode.allocate(turn.decode, tokens):
                last = next(reversed(self._decoding))
                self._end(last)
                self.num_preempted += 1
                if last is turn:
                    break
            else:
                turn.decoded += tokens
                if turn.decoded == turn.output:
                    self._end(turn)

    def _end(self, turn: Turn) -> None:
        del self._decoding[turn]
        self.decode.manager.free(turn.decode)


def serve(setting: Setting, requests: list[list[Any]]) -> dict[str, Any]:
    """Serve requests and return what was transferred.

    Args:
        setting: What is run.
        requests: For each its prompt's and its output's tokens, and the runs of its
            blocks' numbers, as pairs of the first one and how many.

    Returns:
        `transfers`: for each its request's number, blocks, and runs on the prefill
        side, on the decode side and on both; `kept`: the runs on both sides of those
        that were asked for, as source, target and length; and what the sides did.
    """
    # No list of them is kept: those that have ended would hold their hashes.
    pair = Pair(setting, (Turn(n, *request) for n, request in enumerate(requests)))
    pair.run()
    return {
        "transfers": pair.transfers,
        "kept": pair.kept,
        "preempted": pair.num_preempted,
    } | {
        name: {
            "hit_tokens": pool.hit_tokens,
            "moved_blocks": pool.moved_blocks,
            "thread_seconds": pool.thread_ns / 1e9,
            "free_blocks": pool.manager.block_pool.get_num_free_blocks(),
        }
        for name, pool in (("prefill", pair.prefill), ("decode", pair.decode))
    }


def main(file: Path) -> None:
    """Serve what the file says, and write the result into it."""
    init_none_hash(sha256)
    given = json.loads(file.read_text())
    setting = Setting(**given["setting"])
    file.write_text(json.dumps(serve(setting, given["requests"])))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
