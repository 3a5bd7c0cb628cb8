# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Time what sending a request's block ids costs the host: a list, or ranges.

    python bench_block_ids.py

shows each part of the way from the scheduler's ranges to what is staged for the
device, in microseconds of thread CPU time, for the 8,192 blocks of 128K tokens and for
a few blocks. The ways take turns; the fastest of all rounds is shown, because a busy
machine only ever adds time. Kernels are not launched: it needs no GPU.
"""

# ruff: noqa: E402
import argparse
import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch

import vllm.v1.worker.cpu.shm  # noqa: F401  isort: skip
import vllm.v1.worker.gpu.buffer_utils as buffer_utils
from vllm.tagma import KVAllocator
from vllm.v1.block_ranges import BlockRanges
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.tagma_block_table import TagmaBlockTables


class NoLaunch:
    """In the kernel's place: what is timed is the host's part."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def make_ranges(num_blocks: int, num_ranges: int):
    """Return an engine's ranges, with a gap behind each."""
    allocator = KVAllocator(4 * num_blocks + 4 * num_ranges)
    allocator.allocate(1)  # the null block
    ranges = allocator.new_ranges()
    for r in range(num_ranges):
        begin, end = (num_blocks * (r + i) // num_ranges for i in (0, 1))
        start, count = allocator.allocate(end - begin)
        allocator.allocate(1)
        allocator.acquire(ranges, range(start, start + count))
    return ranges


class Way:
    """The parts of one way, each timed by itself."""

    def __init__(self, tables: BlockTables, to_ids: Callable[[Any], Any]):
        self.tables, self.to_ids = tables, to_ids

    def run(self, ranges) -> dict[str, float]:
        times: dict[str, float] = {}

        def timed(part: str, call: Callable[..., Any], *args: Any) -> Any:
            begin = time.thread_time_ns()
            result = call(*args)
            times[part] = (time.thread_time_ns() - begin) / 1000
            return result

        ids = timed("list the ids", self.to_ids, ranges)
        sent = timed("pickle", pickle.dumps, (ids,), pickle.HIGHEST_PROTOCOL)
        received = timed("unpickle", pickle.loads, sent)
        timed("append", self.tables.append_block_ids, 0, received, True)
        timed("stage", self.tables.apply_staged_writes)
        times["all"] = sum(times.values())
        times["bytes"] = len(sent)
        return times


def measure(num_blocks: int, num_ranges: int, rounds: int) -> dict[str, Any]:
    """Return the fastest time of each part, of both ways."""
    ranges = make_ranges(num_blocks, num_ranges)
    size = ([16], 4, 64, [num_blocks], torch.device("cpu"))
    # The tagma way by lists is what a scheduler without `BlockRanges` would cost.
    ways = {
        "paged, list": Way(BlockTables(*size), lambda r: r.block_ids()),
        "tagma, list": Way(TagmaBlockTables(*size), lambda r: r.block_ids()),
        "tagma, ranges": Way(
            TagmaBlockTables(*size), lambda r: BlockRanges(r.ranges())
        ),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            runs[name].append(way.run(ranges))
    return {
        "blocks": num_blocks,
        "ranges": num_ranges,
        "us": {
            name: {part: min(run[part] for run in of_way) for part in of_way[0]}
            for name, of_way in runs.items()
        },
    }


def lines(results: list[dict[str, Any]]) -> Iterator[str]:
    """Return the results as a Markdown table."""
    parts = list(next(iter(results[0]["us"].values())))
    yield f"| blocks | ranges | way | {' | '.join(parts)} |"
    yield "| ---: " * 2 + "| --- " + "| ---: " * len(parts) + "|"
    for result in results:
        for way, values in result["us"].items():
            cells = [f"{value:.1f}" for value in values.values()]
            cells[-1] = str(values["bytes"])
            head = f"| {result['blocks']} | {result['ranges']} | {way} "
            yield f"{head}| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    buffer_utils._apply_write_kernel = NoLaunch()
    cases = [(8192, r) for r in (1, 4, 64, 256)] + [(1, 1), (8, 1), (32, 1)]
    results = [measure(*case, args.rounds) for case in cases]
    if args.json:
        print(json.dumps(results, indent=2))
    else:
        print("\n".join(lines(results)))


if __name__ == "__main__":
    main()
