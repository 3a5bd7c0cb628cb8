"""Move blocks between two processes with NIXL's agents, as vLLM's connector does.

Usage: python -m tools.inside.transfer_agents FILE

FILE holds a `Task` and gets the result, one JSON object each. `tools.replay.transfer`
runs it in the serving environment, with NIXL's package on PYTHONPATH. All sides of a
case take turns in every round, over TCP. A pool is mapped whole, only the blocks of
the case that runs are touched, and they are given back behind it.
"""

import json
import multiprocessing
import sys
import time
import types
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.inside.agent_memory import Memory, Runs, Task, blocks_of


def make_agent(name: str, memory: Memory) -> Any:
    """Return an agent that knows the pool."""
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(name, nixl_agent_config(capture_telemetry=True))
    agent.register_memory(
        agent.get_reg_descs([(memory.base, memory.size, 0, "")], "DRAM")
    )
    return agent


def serve(task: Task, pipe: Connection) -> None:
    """Be the prefill side: hold the blocks that are asked for, until told to end."""
    memory = Memory(task)
    agent = make_agent("prefill", memory)
    pipe.send((agent.get_agent_metadata(), memory.base))
    while True:
        if pipe.poll(0.001):
            blocks = pipe.recv()
            if blocks is None:
                return
            memory.give_back()
            memory.fill(blocks, is_named=True)
            pipe.send(True)
        agent.get_new_notifs()


class Decode:
    """The decode side, which reads.

    Args:
        task: What is measured.
        pipe: To the prefill side.
    """

    def __init__(self, task: Task, pipe: Connection) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import (
            NixlBaseConnectorWorker,
        )

        self._task, self._pipe = task, pipe
        self._memory = Memory(task)
        self._agent = make_agent("decode", self._memory)
        metadata, base = pipe.recv()
        peer = self._agent.add_remote_agent(metadata)
        self._peer = peer.decode() if isinstance(peer, bytes) else peer
        self._local = self._prepared("NIXL_INIT_AGENT", self._memory.base)
        self._remote = self._prepared(self._peer, base)
        self._desc_ids = NixlBaseConnectorWorker._compute_desc_ids
        # The part of a worker that the connector's method reads.
        self._worker = types.SimpleNamespace(
            _has_mamba=False,
            _transfer_layer_group_ids=(),
            num_regions=task.layers,
            block_len_per_layer=[task.block_bytes] * task.layers,
            region_group_ids=[0] * task.layers,
            _uses_region_group_mapping=False,
        )

    def _prepared(self, peer: str, base: int) -> Any:
        descriptors = self._memory.descriptors(self._task)
        descriptors[:, 0] += np.uint64((base - self._memory.base) % (1 << 64))
        listed = self._agent.get_xfer_descs(descriptors, "DRAM")
        return self._agent.prep_xfer_dlist(peer, listed)

    def _ids(self, blocks: list[int]) -> Any:
        layers, num_blocks = self._task.layers, self._task.num_blocks
        return self._desc_ids(
            self._worker,
            block_ids=[blocks],
            dst_num_blocks=num_blocks,
            block_size_ratio=None,
            physical_blocks_per_logical=1,
            region_num_blocks=[num_blocks] * layers,
            region_group_ids=[0] * layers,
            uses_region_group_mapping=False,
        )

    def transfer(self, runs: Runs, verify: bool) -> dict[str, float]:
        """Read blocks.

        Args:
            runs: Which, and where to.
            verify: Whether to check every byte of them.

        Returns:
            `descriptors` and `bytes` as NIXL counts them; `make_ms`, this thread's
            CPU time to make the transfer; `cpu_ms`, this process's CPU time from
            then to its end, and `elapsed_ms`.

        Raises:
            RuntimeError: The transfer failed, or a byte is wrong.
        """
        sources, targets = blocks_of(runs)
        self._pipe.send(sources)
        self._pipe.recv()
        self._memory.fill(
            targets, is_named=False
        )  # so that no page is new in what is timed
        row = self._read(sources, targets)
        if verify and not self._memory.holds(targets, sources):
            raise RuntimeError("the transfer gave wrong bytes")
        return row

    def _read(
        self, sources: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> dict[str, float]:
        begun, cpu = time.perf_counter(), time.process_time()
        thread = time.thread_time()
        handle = self._agent.make_prepped_xfer(
            "READ",
            self._local,
            self._ids(targets.tolist()),
            self._remote,
            self._ids(sources.tolist()),
            b"done",
        )
        made = time.thread_time()
        state = self._agent.transfer(handle)
        while state not in ("DONE", "ERR"):
            time.sleep(0.0003)
            state = self._agent.check_xfer_state(handle)
        ended, cpu_ended = time.perf_counter(), time.process_time()
        counted = self._agent.get_xfer_telemetry(handle)
        self._agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"the transfer ended as {state}")
        return {
            "descriptors": counted.descCount,
            "bytes": counted.totalBytes,
            "make_ms": (made - thread) * 1e3,
            "cpu_ms": (cpu_ended - cpu) * 1e3,
            "elapsed_ms": (ended - begun) * 1e3,
        }


def measure(task: Task) -> list[dict[str, Any]]:
    """Return a row for each round of each side of each case."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=serve, args=(task, theirs), daemon=True)
    process.start()
    decode = Decode(task, mine)
    rows = task.run(decode.transfer)
    mine.send(None)
    process.join()
    return rows


def main(file: Path) -> None:
    """Measure what the file says, and write the result into it."""
    task = Task(**json.loads(file.read_text()))
    file.write_text(json.dumps(measure(task)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
