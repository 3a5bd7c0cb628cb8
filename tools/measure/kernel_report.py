"""What the backend's kernels compile to for GPUs, beside the paged ones.

The tree's tests/v1/worker/kernel_code.py compiles and counts, with the Triton of the
serving environment; no GPU is needed. Here it becomes a table.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from tools.base import atomic
from tools.base.process import run
from tools.base.project import Project
from tools.compile.environment import python

ARCHS = (80, 90, 100, 120)

# Heading, and the field that it shows.
_COLUMNS = {
    "kernel": "label",
    "sm": "arch",
    "table loads": "table_loads",
    "PTX ld.global": "ptx_loads",
    "PTX st.global": "ptx_stores",
    "SASS LDG": "sass_loads",
    "SASS STG": "sass_stores",
    "registers": "registers",
    "spills": "spills",
}
_TEXT = ("label",)

_LEGEND = (
    "Instructions in a kernel's text, not how often they run. Table loads: loads of a "
    "whole tile of block numbers in TTGIR, one for each position or block. Fallback: "
    "the variant that is launched while a request is over the cap of ranges, and "
    "captured in CUDA graphs."
)


@dataclass(frozen=True)
class Code:
    """One kernel on one architecture, as `kernel_code.py` describes it."""

    label: str
    arch: int
    table_loads: int
    ptx_loads: int
    ptx_stores: int
    sass_loads: int
    sass_stores: int
    registers: int
    spills: int


@dataclass(frozen=True)
class KernelReport:
    """All kernels on all architectures.

    Args:
        triton: The version of the compiler.
        codes: What it made.
    """

    triton: str
    codes: tuple[Code, ...]

    @classmethod
    def make(cls, project: Project, archs: Sequence[int] = ARCHS) -> "KernelReport":
        """Compile the tree's kernels with the serving environment's Triton.

        Raises:
            ToolError: A kernel does not compile.
        """
        script = project.tree / "tests" / "v1" / "worker" / "kernel_code.py"
        env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        cache = project.build / "triton-cache"
        done = run(
            [python(project), script, project.tree / "vllm", *map(str, archs)],
            env=env | {"TRITON_CACHE_DIR": str(cache)},
        )
        return cls.from_data(json.loads(done.stdout))

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "KernelReport":
        """Read what `kernel_code.py` printed, or `to_data` returned."""
        return cls(data["triton"], tuple(Code(**code) for code in data["kernels"]))

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "triton": self.triton,
            "kernels": [asdict(code) for code in self.codes],
        }

    def table(self) -> Table:
        """Return the table for people."""
        table = Table(box=box.SIMPLE_HEAD, caption=_LEGEND, caption_justify="left")
        for heading, name in _COLUMNS.items():
            table.add_column(heading, justify="left" if name in _TEXT else "right")
        for row in self._rows():
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---" if name in _TEXT else "---:" for name in _COLUMNS.values()]
        rows = [list(_COLUMNS), rule, *self._rows()]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([*lines, "", f"{_LEGEND} Triton {self.triton}.", ""])

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write kernels.md and kernels.json and return their paths."""
        markdown, data = folder / "kernels.md", folder / "kernels.json"
        atomic.write(markdown, self.to_markdown().encode())
        atomic.write_json(data, self.to_data())
        return markdown, data

    def _rows(self) -> list[list[str]]:
        # The same kernel's architectures together, paged before tagma.
        order = {code.label: i for i, code in reversed([*enumerate(self.codes)])}
        codes = sorted(self.codes, key=lambda code: (order[code.label], code.arch))
        return [
            [str(getattr(code, name)) for name in _COLUMNS.values()] for code in codes
        ]
