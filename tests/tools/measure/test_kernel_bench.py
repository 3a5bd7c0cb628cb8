"""The kernels' benchmark on a GPU: where it runs, and what becomes of its times."""

import json
import sys
from pathlib import Path

from checkout import REPOSITORY

from tools.measure import kernel_bench
from tools.measure.gpu_bench import Skipped
from tools.measure.kernel_bench import KernelBenchmark

DATA = {
    "device": "a card",
    "torch": "2.13.0",
    "triton": "3.9.0",
    "bandwidth_gb_s": 1000.0,
    "timings": [
        {
            "step": "decode",
            "context": 4096,
            "requests": 64,
            "ranges": ranges,
            "kernel": kernel,
            "launches": 60,
            "median_us": us,
            "bytes_moved": 100_000,
        }
        for ranges in (1, 2)
        for kernel, us in (("paged", 4.0), ("tagma", 2.0), ("tagma + fallback", 5.0))
    ],
}


def script(folder: Path, name: str, output: object) -> Path:
    """Return a Python that answers every call with one JSON."""
    file = folder / name
    file.write_text(f"#!/bin/sh\necho '{json.dumps(output)}'\n")
    file.chmod(0o755)
    return file


def test_a_python_without_torch_is_named_and_skipped(tmp_path: Path):
    """The tools' own Python, and the script as it is."""
    (tmp_path / "tests").symlink_to(REPOSITORY / "tests" / "vllm")
    skipped = kernel_bench.measure([Path(sys.executable)], tmp_path)
    assert skipped == Skipped((f"{sys.executable} cannot import torch",))


def test_the_first_python_that_can_measures(tmp_path: Path):
    pythons = [
        script(tmp_path, "without", {"skipped": "no CUDA device"}),
        script(tmp_path, "with", DATA),
    ]
    measured = kernel_bench.measure(pythons, tmp_path)
    assert measured == KernelBenchmark.from_data(DATA)
    assert kernel_bench.measure(pythons[:1], tmp_path) == Skipped(("no CUDA device",))


def test_a_row_compares_the_kernels_of_one_case():
    lines = KernelBenchmark.from_data(DATA).to_markdown().splitlines()
    assert lines[0] == "a card, torch 2.13.0, Triton 3.9.0, copy 1000 GB/s"
    assert lines[4:] == [
        f"| decode | 4096 | 64 | {ranges} | 4.0 | 2.0 | 5.0 | 0.50 | 25 | 50 | 5% |"
        for ranges in (1, 2)
    ]


def test_the_written_files_hold_what_was_measured(tmp_path: Path):
    measured = KernelBenchmark.from_data(DATA)
    markdown, data = measured.write(tmp_path / "bench" / "tables")
    assert json.loads(data.read_text()) == DATA
    assert markdown.read_text() == measured.to_markdown()
