"""The write path's kernels on a GPU, paged beside tagma.

The tree's tests/v1/worker/bench_block_tables.py measures; here it becomes a table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from tools.measure import gpu_bench
from tools.measure.gpu_bench import GpuBenchmark, GpuTiming, Skipped


@dataclass(frozen=True)
class KernelTiming(GpuTiming):
    """One kernel in one case, as `bench_block_tables.py` describes it."""

    step: str
    context: int
    requests: int
    ranges: int

    @property
    def case(self) -> tuple[str, int, int, int]:
        """What was timed, whichever kernel did it."""
        return self.step, self.context, self.requests, self.ranges


@dataclass(frozen=True)
class KernelBenchmark(GpuBenchmark):
    """All timings of one run.

    Args:
        timings: The medians.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "step",
        "context",
        "requests",
        "ranges",
        "paged, µs",
        "tagma, µs",
        "+ fallback, µs",
        "tagma / paged",
        "paged, GB/s",
        "tagma, GB/s",
        "of the card",
    )

    timings: tuple[KernelTiming, ...]

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "KernelBenchmark":
        """Read what `bench_block_tables.py` printed."""
        timings = tuple(KernelTiming(**timing) for timing in data["timings"])
        return cls(**{**data, "timings": timings})

    def _rows(self) -> Iterator[list[str]]:
        for case, group in groupby(self.timings, key=lambda timing: timing.case):
            by_kernel = {timing.kernel: timing for timing in group}
            paged, tagma = by_kernel["paged"], by_kernel["tagma"]
            yield [
                *map(str, case),
                f"{paged.median_us:.1f}",
                f"{tagma.median_us:.1f}",
                f"{by_kernel['tagma + fallback'].median_us:.1f}",
                f"{tagma.median_us / paged.median_us:.2f}",
                f"{paged.gb_per_s:.0f}",
                f"{tagma.gb_per_s:.0f}",
                self.share(tagma),
            ]


def measure(
    pythons: Sequence[Path], tree: Path, arguments: Sequence[str] = ()
) -> KernelBenchmark | Skipped:
    """Run the benchmark with the first Python that can.

    Raises:
        ToolError: A kernel failed, or a result of tagma differs from paged.
    """
    data = gpu_bench.measure(pythons, tree, "bench_block_tables.py", arguments)
    return data if isinstance(data, Skipped) else KernelBenchmark.from_data(data)
