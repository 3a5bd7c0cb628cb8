"""What a script of the tree measured on a GPU: a table, Markdown and JSON.

Such a script runs under any Python that has torch, Triton and a GPU; vLLM need not be
installed there.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich import box
from rich.table import Table

from tools.base import atomic
from tools.base.process import run


@dataclass(frozen=True)
class GpuTiming:
    """One kernel in one case; subclasses have what the case is.

    Args:
        kernel: Its name.
        launches: How many were timed.
        median_us: Their median in microseconds.
        bytes_moved: What a launch must read and write at least.
    """

    kernel: str
    launches: int
    median_us: float
    bytes_moved: int

    @property
    def gb_per_s(self) -> float:
        """The bytes that a launch must move, over its time."""
        return self.bytes_moved / self.median_us / 1e3


@dataclass(frozen=True)
class GpuBenchmark(ABC):
    """All timings of one run; subclasses hold and show them.

    Args:
        device: The GPU, or "interpreter".
        torch: Version of torch.
        triton: Version of Triton.
        bandwidth_gb_s: What a large copy reached in the same run.
    """

    columns: ClassVar[tuple[str, ...]]

    device: str
    torch: str
    triton: str
    bandwidth_gb_s: float

    @property
    def title(self) -> str:
        """What the run was made on."""
        return (
            f"{self.device}, torch {self.torch}, Triton {self.triton}, "
            f"copy {self.bandwidth_gb_s:.0f} GB/s"
        )

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON, as the script printed it."""
        data = asdict(self)
        return {**data, "timings": list(data["timings"])}

    def table(self) -> Table:
        """Return the table for people."""
        table = Table(box=box.SIMPLE_HEAD, title=self.title)
        for i, heading in enumerate(self.columns):
            table.add_column(heading, justify="right" if i else "left")
        for row in self._rows():
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        rows = [self.columns, rule, *self._rows()]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([self.title, "", *lines, ""])

    def write(self, stem: Path) -> tuple[Path, Path]:
        """Write the table as Markdown and everything as JSON; return both paths."""
        markdown, data = stem.with_suffix(".md"), stem.with_suffix(".json")
        atomic.write(markdown, self.to_markdown().encode())
        atomic.write_json(data, self.to_data())
        return markdown, data

    def share(self, timing: GpuTiming) -> str:
        """Return how much of the card's bandwidth a kernel reached."""
        share = timing.gb_per_s / self.bandwidth_gb_s if self.bandwidth_gb_s else 0
        return f"{share:.0%}"

    @abstractmethod
    def _rows(self) -> Iterator[list[str]]:
        """Yield the table's rows."""


@dataclass(frozen=True)
class Skipped:
    """No Python here has torch, Triton and a GPU: the reason of each."""

    reasons: tuple[str, ...]


def measure(
    pythons: Sequence[Path], tree: Path, script: str, arguments: Sequence[str] = ()
) -> dict[str, Any] | Skipped:
    """Return what a script of tests/v1/worker printed for the first Python that can.

    Raises:
        ToolError: A kernel failed, or a result differs from upstream's.
    """
    reasons = []
    file = tree / "tests" / "v1" / "worker" / script
    for python in pythons:
        data = json.loads(run([python, file, tree / "vllm", *arguments]).stdout)
        if "skipped" not in data:
            return dict(data)
        reasons.append(data["skipped"])
    return Skipped(tuple(reasons))
