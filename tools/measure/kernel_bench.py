"""The write path's kernels on a GPU, paged beside tagma.

The tree's tests/v1/worker/bench_block_tables.py measures, under any Python that has
torch, Triton and a GPU; vLLM need not be installed there. Here it becomes a table.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from tools.base import atomic
from tools.base.process import run

_SCRIPT = Path("tests", "v1", "worker", "bench_block_tables.py")
_COLUMNS = (
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


@dataclass(frozen=True)
class KernelTiming:
    """One kernel in one case, as `bench_block_tables.py` describes it."""

    step: str
    context: int
    requests: int
    ranges: int
    kernel: str
    launches: int
    median_us: float
    bytes_moved: int

    @property
    def case(self) -> tuple[str, int, int, int]:
        """What was timed, whichever kernel did it."""
        return self.step, self.context, self.requests, self.ranges

    @property
    def gb_per_s(self) -> float:
        """The bytes that a launch must move, over its time."""
        return self.bytes_moved / self.median_us / 1e3


@dataclass(frozen=True)
class KernelBenchmark:
    """All timings of one run.

    Args:
        device: The GPU, or "interpreter".
        torch: Version of torch.
        triton: Version of Triton.
        bandwidth_gb_s: What a large copy reached in the same run.
        timings: The medians.
    """

    device: str
    torch: str
    triton: str
    bandwidth_gb_s: float
    timings: tuple[KernelTiming, ...]

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "KernelBenchmark":
        """Read what `bench_block_tables.py` printed."""
        timings = tuple(KernelTiming(**timing) for timing in data["timings"])
        return cls(**{**data, "timings": timings})

    @property
    def title(self) -> str:
        """What the run was made on."""
        return (
            f"{self.device}, torch {self.torch}, Triton {self.triton}, "
            f"copy {self.bandwidth_gb_s:.0f} GB/s"
        )

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON, as `from_data` reads it."""
        return {**asdict(self), "timings": [asdict(timing) for timing in self.timings]}

    def table(self) -> Table:
        """Return the table for people."""
        table = Table(box=box.SIMPLE_HEAD, title=self.title)
        for i, heading in enumerate(_COLUMNS):
            table.add_column(heading, justify="right" if i else "left")
        for row in self._rows():
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---", *["---:"] * (len(_COLUMNS) - 1)]
        rows = [_COLUMNS, rule, *self._rows()]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([self.title, "", *lines, ""])

    def write(self, stem: Path) -> tuple[Path, Path]:
        """Write the table as Markdown and everything as JSON; return both paths."""
        markdown, data = stem.with_suffix(".md"), stem.with_suffix(".json")
        atomic.write(markdown, self.to_markdown().encode())
        atomic.write_json(data, self.to_data())
        return markdown, data

    def _rows(self) -> Iterator[list[str]]:
        for case, group in groupby(self.timings, key=lambda timing: timing.case):
            by_kernel = {timing.kernel: timing for timing in group}
            paged, tagma = by_kernel["paged"], by_kernel["tagma"]
            share = tagma.gb_per_s / self.bandwidth_gb_s if self.bandwidth_gb_s else 0
            yield [
                *map(str, case),
                f"{paged.median_us:.1f}",
                f"{tagma.median_us:.1f}",
                f"{by_kernel['tagma + fallback'].median_us:.1f}",
                f"{tagma.median_us / paged.median_us:.2f}",
                f"{paged.gb_per_s:.0f}",
                f"{tagma.gb_per_s:.0f}",
                f"{share:.0%}",
            ]


@dataclass(frozen=True)
class Skipped:
    """No Python here has torch, Triton and a GPU: the reason of each."""

    reasons: tuple[str, ...]


def measure(
    pythons: Sequence[Path], tree: Path, arguments: Sequence[str] = ()
) -> KernelBenchmark | Skipped:
    """Run the benchmark with the first Python that can.

    Raises:
        ToolError: A kernel failed, or a result of tagma differs from paged.
    """
    reasons = []
    for python in pythons:
        done = run([python, tree / _SCRIPT, tree / "vllm", *arguments])
        data = json.loads(done.stdout)
        if "skipped" not in data:
            return KernelBenchmark.from_data(data)
        reasons.append(data["skipped"])
    return Skipped(tuple(reasons))
