"""Copies of KV cache blocks on a GPU, upstream's beside tagma's.

The tree's tests/v1/worker/bench_block_copies.py measures; here it becomes a table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from tools.measure import gpu_bench
from tools.measure.gpu_bench import GpuBenchmark, GpuTiming, Skipped


@dataclass(frozen=True)
class CopyTiming(GpuTiming):
    """One copy in one case, as `bench_block_copies.py` describes it."""

    blocks: int
    order: str

    @property
    def case(self) -> tuple[int, str]:
        """What was timed, whoever copied it."""
        return self.blocks, self.order


@dataclass(frozen=True)
class CopyBenchmark(GpuBenchmark):
    """All timings of one run.

    Args:
        timings: The medians.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "blocks",
        "order",
        "upstream, µs",
        "tagma, µs",
        "tagma / upstream",
        "upstream, GB/s",
        "tagma, GB/s",
        "of the card",
    )

    timings: tuple[CopyTiming, ...]

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "CopyBenchmark":
        """Read what `bench_block_copies.py` printed."""
        timings = tuple(CopyTiming(**timing) for timing in data["timings"])
        return cls(**{**data, "timings": timings})

    def _rows(self) -> Iterator[list[str]]:
        for case, group in groupby(self.timings, key=lambda timing: timing.case):
            by_kernel = {timing.kernel: timing for timing in group}
            upstream, tagma = by_kernel["upstream"], by_kernel["tagma"]
            yield [
                *map(str, case),
                f"{upstream.median_us:.1f}",
                f"{tagma.median_us:.1f}",
                f"{tagma.median_us / upstream.median_us:.2f}",
                f"{upstream.gb_per_s:.0f}",
                f"{tagma.gb_per_s:.0f}",
                self.share(tagma),
            ]


def measure(
    pythons: Sequence[Path], tree: Path, arguments: Sequence[str] = ()
) -> CopyBenchmark | Skipped:
    """Run the benchmark with the first Python that can.

    Raises:
        ToolError: A copy failed, or a result of tagma differs from upstream's.
    """
    data = gpu_bench.measure(pythons, tree, "bench_block_copies.py", arguments)
    return data if isinstance(data, Skipped) else CopyBenchmark.from_data(data)
