"""The table of compiled kernels: what it holds and where it is written."""

import json
from pathlib import Path

from tools.measure.kernel_report import Code, KernelReport


def code(label: str, arch: int, table_loads: int = 0) -> Code:
    return Code(label, arch, table_loads, 20, 16, 19, 15, 72, 3)


REPORT = KernelReport(
    "3.9.0",
    tuple(code(label, arch) for arch in (80, 90) for label in ("paged", "tagma")),
)


def test_a_kernels_architectures_are_together_paged_first():
    rows = [line for line in REPORT.to_markdown().splitlines() if line[0:1] == "|"]
    assert [row.split(" | ")[:2] for row in rows[2:]] == [
        ["| paged", "80"],
        ["| paged", "90"],
        ["| tagma", "80"],
        ["| tagma", "90"],
    ]
    assert rows[2] == "| paged | 80 | 0 | 20 | 16 | 19 | 15 | 72 | 3 |"
    assert {row.count("|") for row in rows} == {10}


def test_both_files_hold_the_same(tmp_path: Path):
    markdown, data = REPORT.write(tmp_path / "bench")
    assert KernelReport.from_data(json.loads(data.read_text())) == REPORT
    assert markdown.read_text() == REPORT.to_markdown()
    assert "Triton 3.9.0" in markdown.read_text()
