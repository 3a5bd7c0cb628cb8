"""Move blocks between two processes with Mooncake's engine, as vLLM's connector does.

Usage: python -m tools.inside.mooncake_agents FILE

As `transfer_agents`, but the prefill side writes, so that it is the one measured. Runs
are grouped by the connector's own function.
"""

import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tools.inside.agent_memory import Memory, Runs, Task, blocks_of

ADDRESS = "127.0.0.1"
# Its TCP lanes refuse what does not fit their queues, and with that the whole call,
# which happens to paged's 14,000 descriptors of 8,192 tokens. vLLM's connector hands
# over all at once.
_MOST_AT_ONCE = 1024


def make_engine(memory: Memory) -> Any:
    """Return an engine that knows the pool.

    Raises:
        RuntimeError: Mooncake refuses.
    """
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize(ADDRESS, "P2PHANDSHAKE", "tcp", ""):
        raise RuntimeError("Mooncake's engine does not start")
    if engine.register_memory(memory.base, memory.size):
        raise RuntimeError("Mooncake's engine does not take the memory")
    return engine


def receive(task: Task, pipe: Connection) -> None:
    """Be the decode side: make room, then say whether the right blocks came."""
    memory = Memory(task)
    engine = make_engine(memory)
    pipe.send((f"{ADDRESS}:{engine.get_rpc_port()}", memory.base))
    while (asked := pipe.recv()) is not None:
        sources, targets = asked
        if sources is None:
            memory.give_back()
            memory.fill(targets, is_named=False)
            pipe.send(True)
        else:
            pipe.send(memory.holds(targets, sources))


class Prefill:
    """The prefill side, which writes.

    Args:
        task: What is measured.
        pipe: To the decode side.
    """

    def __init__(self, task: Task, pipe: Connection) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import (
            mooncake_connector,
        )

        self._task, self._pipe = task, pipe
        self._memory = Memory(task)
        self._engine = make_engine(self._memory)
        self._session, self._base = pipe.recv()
        self._group = mooncake_connector.group_concurrent_contiguous

    def transfer(self, runs: Runs, verify: bool) -> dict[str, float]:
        """Write blocks; returns what `transfer_agents` does.

        Args:
            runs: Which, and where to.
            verify: Whether to check every byte of them.

        Raises:
            RuntimeError: The transfer failed, or a byte is wrong.
        """
        sources, targets = blocks_of(runs)
        self._memory.give_back()
        self._memory.fill(sources, is_named=True)
        self._pipe.send((None, targets))
        self._pipe.recv()
        row = self._write(sources.tolist(), targets.tolist())
        if verify:
            self._pipe.send((sources, targets))
            if not self._pipe.recv():
                raise RuntimeError("the transfer gave wrong bytes")
        return row

    def _write(self, sources: list[int], targets: list[int]) -> dict[str, float]:
        begun, cpu = time.perf_counter(), time.process_time()
        thread = time.thread_time()
        lists = self._lists(sources, targets)
        made = time.thread_time()
        for first in range(0, len(lists[0]), _MOST_AT_ONCE):
            part = (values[first : first + _MOST_AT_ONCE] for values in lists)
            if self._engine.batch_transfer_sync_write(self._session, *part):
                raise RuntimeError("the transfer failed")
        return {
            "descriptors": len(lists[0]),
            "bytes": sum(lists[2]),
            "make_ms": (made - thread) * 1e3,
            "cpu_ms": (time.process_time() - cpu) * 1e3,
            "elapsed_ms": (time.perf_counter() - begun) * 1e3,
        }

    def _lists(
        self, sources: list[int], targets: list[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Return addresses here and there, and bytes, of all runs of all layers."""
        size = self._task.block_bytes
        ours, theirs = self._group(sources, targets)
        starts, ends, counts = (
            np.array(values)
            for values in zip(
                *((a[0], b[0], len(a)) for a, b in zip(ours, theirs, strict=True)),
                strict=True,
            )
        )
        layers = np.arange(self._task.layers)[:, None] * self._task.num_blocks
        return (
            (self._memory.base + (layers + starts) * size).ravel().tolist(),
            (self._base + (layers + ends) * size).ravel().tolist(),
            np.tile(counts * size, self._task.layers).tolist(),
        )


def measure(task: Task) -> list[dict[str, Any]]:
    """Return a row for each round of each side of each case."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=receive, args=(task, theirs), daemon=True)
    process.start()
    prefill = Prefill(task, mine)
    rows = task.run(prefill.transfer)
    mine.send(None)
    process.join()
    return rows


def main(file: Path) -> None:
    """Measure what the file says, and write the result into it."""
    task = Task(**json.loads(file.read_text()))
    file.write_text(json.dumps(measure(task)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
