# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Time the block-table kernels on a GPU: paged beside tagma.

    python bench_block_tables.py PACKAGE

takes the kernels from the folder PACKAGE (`vllm`), needs torch and Triton and
nothing of vLLM, and prints JSON; {"skipped": reason} where there is no GPU. With
--dry-run the same steps run on tiny cases in Triton's interpreter, on the CPU.

A time is the median of single launches, each after the L2 cache has been flushed,
between two CUDA events. Paged and tagma take turns, and must agree before they are
timed. In a prefill step the requests share TOKENS_PER_STEP tokens, the last ones of
their context.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from kernel_code import BLOCK_SIZE, load_kernels

KV_BLOCK_SIZE = 16
TOKENS_PER_STEP = 16384
MAX_RANGES = 256
CONTEXTS = (4096, 16384, 131072)
REQUESTS = (1, 64, 512)
RANGES = (1, 2, 8, 64)
_FLUSHED_BYTES = 1 << 30
_PAD_ID = -1


@dataclass(frozen=True)
class Case:
    """A step: so many requests of one context length, each of so many ranges."""

    step: str  # "prefill" or "decode": slot mappings; "block table": its rows
    context: int
    requests: int
    ranges: int

    @property
    def blocks(self) -> int:
        """KV blocks of a request."""
        return -(-self.context // KV_BLOCK_SIZE)

    @property
    def query_len(self) -> int:
        """Tokens of a request in this step."""
        if self.step == "decode":
            return 1
        return max(1, min(self.context, TOKENS_PER_STEP // self.requests))


@dataclass(frozen=True)
class Timing:
    """One kernel in one case.

    Args:
        case: The case.
        kernel: "paged", "tagma" or "tagma + fallback".
        launches: How many were timed.
        median_us: Median time of a launch.
        bytes_moved: What a launch has to read and write, computed.

    """

    case: Case
    kernel: str
    launches: int
    median_us: float
    bytes_moved: int

    def to_data(self) -> dict[str, Any]:
        data = asdict(self)
        return {**data.pop("case"), **data}


def cases() -> Iterator[Case]:
    """Return all cases of the benchmark."""
    steps = ("prefill", "decode", "block table")
    for step, context, requests, ranges in product(steps, CONTEXTS, REQUESTS, RANGES):
        yield Case(step, context, requests, ranges)


def dry_cases() -> Iterator[Case]:
    """Return one tiny case of every kind."""
    for step, ranges in product(("prefill", "decode", "block table"), (1, 3)):
        yield Case(step, context=100, requests=2, ranges=ranges)


class Tables:
    """What `BlockTables` and `TagmaBlockTables` hold on the device in a case."""

    def __init__(self, torch: Any, case: Case, device: str):
        import numpy as np

        def tensor(data, dtype):
            return torch.tensor(data, dtype=dtype, device=device)

        blocks = case.blocks
        stride = -(-blocks // 16) * 16
        cuts = [blocks * r // case.ranges for r in range(case.ranges + 1)]
        table = np.zeros((case.requests, stride), np.int32)
        rows = np.zeros((case.requests, 2 * MAX_RANGES + 2), np.int32)
        # Ranges of all requests are in one order of places, shuffled.
        rng = np.random.default_rng(0)
        places = rng.permutation(case.requests * case.ranges)
        for req, ordered in enumerate(places.reshape(case.requests, case.ranges)):
            rows[req, 0] = case.ranges
            for r, place in enumerate(ordered):
                begin, end = cuts[r], cuts[r + 1]
                start = 1 + int(place) * (blocks // case.ranges + 2)
                rows[req, 2 * r + 1 : 2 * r + 4] = begin, start, end
                table[req, begin:end] = np.arange(start, start + end - begin)
        self.requests, self.stride = case.requests, stride
        self.block_table = tensor(table, torch.int32)
        self.range_table = tensor(rows, torch.int32)
        self.out = torch.zeros_like(self.block_table)
        self.num_blocks = tensor([[blocks] * case.requests], torch.int32)
        self.src_ptrs = tensor([self.block_table.data_ptr()], torch.uint64)
        self.dst_ptrs = tensor([self.out.data_ptr()], torch.uint64)
        self.strides = tensor([stride], torch.int64)
        self.block_sizes = tensor([KV_BLOCK_SIZE], torch.int32)
        self.enabled = tensor([True], torch.bool)
        # A batch in another order than the rows'.
        batch = rng.permutation(case.requests).astype(np.int32)
        self.idx_mapping = tensor(batch, torch.int32)
        query_len = case.query_len
        bounds = np.arange(case.requests + 1) * query_len
        self.query_start_loc = tensor(bounds, torch.int32)
        positions = np.arange(case.context - query_len, case.context)
        self.positions = tensor(np.tile(positions, case.requests), torch.int64)
        self.slots = torch.zeros(
            (1, len(self.positions)), dtype=torch.int64, device=device
        )


def launches(
    kernels: Any, case: Case, tables: Tables
) -> tuple[dict[str, Callable[[], Any]], Any]:
    """Return the launch of each kernel of a case, and the tensor that all fill."""
    t = tables
    if case.step == "block table":
        grid = (1, t.requests)
        # From 0.33.0 on the kernel can mask what a sliding window left.
        unmasked = {
            "num_computed_tokens_ptr": t.num_blocks,
            "sliding_window_reach_ptr": t.block_sizes,
            "block_sizes_ptr": t.block_sizes,
            "MASK_SLIDING_WINDOW": False,
        }
        names = kernels._gather_block_tables_kernel.arg_names
        later = {name: unmasked[name] for name in unmasked.keys() & set(names)}

        def gather() -> None:
            kernels._gather_block_tables_kernel[grid](
                t.idx_mapping,
                t.src_ptrs,
                t.dst_ptrs,
                t.strides,
                t.num_blocks,
                t.num_blocks.stride(0),
                t.requests,
                BLOCK_SIZE=BLOCK_SIZE,
                **later,
            )

        def expand(has_fallback: bool) -> None:
            kernels._expand_ranges_to_block_table_kernel[grid](
                t.idx_mapping,
                t.range_table,
                t.range_table.stride(0),
                t.requests,
                t.src_ptrs,
                t.dst_ptrs,
                t.strides,
                t.requests,
                HAS_FALLBACK=has_fallback,
                BLOCK_SIZE=BLOCK_SIZE,
            )

        paged, tagma, out = gather, expand, t.out
    else:
        grid = (1, t.requests + 1)
        batch = (t.slots.shape[1], t.idx_mapping, t.query_start_loc, t.positions)

        def map_slots() -> None:
            kernels._compute_slot_mappings_kernel[grid](
                *batch,
                t.src_ptrs,
                t.strides,
                t.block_sizes,
                t.enabled,
                t.enabled,
                t.slots,
                t.slots.stride(0),
                0,
                CP_SIZE=1,
                CP_INTERLEAVE=1,
                PAD_ID=_PAD_ID,
                TRITON_BLOCK_SIZE=BLOCK_SIZE,
            )

        def map_slots_from_ranges(has_fallback: bool) -> None:
            kernels._compute_slot_mappings_tagma_kernel[grid](
                *batch,
                t.range_table,
                t.range_table.stride(0),
                t.requests,
                t.src_ptrs,
                t.strides,
                t.block_sizes,
                t.enabled,
                t.slots,
                t.slots.stride(0),
                HAS_FALLBACK=has_fallback,
                PAD_ID=_PAD_ID,
                TRITON_BLOCK_SIZE=BLOCK_SIZE,
            )

        paged, tagma, out = map_slots, map_slots_from_ranges, t.slots
    return {
        "paged": paged,
        "tagma": lambda: tagma(False),
        "tagma + fallback": lambda: tagma(True),
    }, out


def bytes_moved(case: Case, kernel: str) -> int:
    """Return what a launch must read and write at least, in bytes."""
    row = 4 * (2 * case.ranges + 2)
    if case.step == "block table":
        written = 4 * case.blocks
        read = 4 * case.blocks if kernel == "paged" else row
    else:
        # A position is read, a slot is written; and the blocks' numbers are read.
        written = 8 * case.query_len
        touched = -(-case.query_len // KV_BLOCK_SIZE)
        read = 8 * case.query_len + (4 * touched if kernel == "paged" else row)
    return case.requests * (read + written)


class Clock:
    """Times single launches on a GPU, or on the CPU in a dry run."""

    def __init__(self, torch: Any, on_gpu: bool):
        self._torch, self._on_gpu = torch, on_gpu
        if on_gpu:
            self._flushed = torch.empty(
                _FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda"
            )

    def time(
        self, kernels: dict[str, Callable[[], Any]], count: int
    ) -> dict[str, float]:
        """Return each kernel's median time in microseconds; they take turns."""
        times: dict[str, list[float]] = {name: [] for name in kernels}
        if not self._on_gpu:
            for name, launch in list(kernels.items()) * count:
                begin = time.perf_counter()
                launch()
                times[name].append((time.perf_counter() - begin) * 1e6)
            return {name: median(values) for name, values in times.items()}
        torch = self._torch
        events = []
        for name, launch in list(kernels.items()) * count:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # Long enough for the launch to be queued before the GPU is idle.
            self._flushed.zero_()
            begin.record()
            launch()
            end.record()
            events.append((name, begin, end))
        torch.cuda.synchronize()
        for name, begin, end in events:
            times[name].append(begin.elapsed_time(end) * 1e3)
        return {name: median(values) for name, values in times.items()}

    def bandwidth(self) -> float:
        """Return what a copy of a large tensor reaches here, in GB/s."""
        if not self._on_gpu:
            return 0.0
        half = self._flushed.numel() // 2
        source, target = self._flushed[:half], self._flushed[half:]
        us = self.time({"copy": lambda: target.copy_(source)}, 20)["copy"]
        return 2 * source.numel() * 4 / us / 1e3


def skip_reason(dry: bool) -> str | None:
    """Return why the benchmark, or its dry run, cannot run here; None: it can."""
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        return f"{sys.executable} cannot import {error.name}"
    if not dry and not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return None


def run(package: Path, folder: Path, launches_timed: int, dry: bool) -> dict[str, Any]:
    """Run all cases and return what was measured."""
    import torch
    import triton

    device = "cpu" if dry else "cuda"
    kernels = load_kernels(package / "v1" / "worker" / "gpu", folder)
    clock = Clock(torch, on_gpu=not dry)
    timings = []
    for case in dry_cases() if dry else cases():
        named, out = launches(kernels, case, Tables(torch, case, device))
        results = {}
        for name, launch in named.items():
            out.fill_(_PAD_ID - 1)
            launch()
            results[name] = out.clone()
        for name, result in results.items():
            if not torch.equal(result, results["paged"]):
                sys.exit(f"{name} differs from paged in {case}")
        for name, us in clock.time(named, launches_timed).items():
            moved = bytes_moved(case, name)
            timings.append(Timing(case, name, launches_timed, us, moved))
    return {
        "device": "interpreter" if dry else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "bandwidth_gb_s": clock.bandwidth(),
        "timings": [timing.to_data() for timing in timings],
    }


Run = Callable[[Path, Path, int, bool], dict[str, Any]]


def main(run: Run, description: str) -> None:
    """Measure with `run(package, folder, launches, dry)`, and print what it returns."""
    import tempfile

    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("package", type=Path, help="the folder `vllm`")
    parser.add_argument("--launches", type=int, default=60, help="of each case")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on the CPU")
    args = parser.parse_args()
    if args.launches < 1:
        parser.error("--launches must be at least 1")
    if args.dry_run:
        # Read by Triton when it is imported.
        os.environ["TRITON_INTERPRET"] = "1"
    if reason := skip_reason(args.dry_run):
        print(json.dumps({"skipped": reason}))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = run(args.package, Path(folder), args.launches, args.dry_run)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main(run, __doc__)
