"""The benchmark of block copies on a GPU: what becomes of its times."""

import json
from pathlib import Path

from tools.measure import copy_bench
from tools.measure.copy_bench import CopyBenchmark

DATA = {
    "device": "a card",
    "torch": "2.13.0",
    "triton": "3.9.0",
    "bandwidth_gb_s": 4000.0,
    "timings": [
        {
            "blocks": blocks,
            "order": "apart",
            "kernel": kernel,
            "launches": 60,
            "median_us": us * blocks,
            "bytes_moved": 4_000_000 * blocks,
        }
        for blocks in (1, 16)
        for kernel, us in (("upstream", 4.0), ("tagma", 2.0))
    ],
}


def test_a_row_compares_both_copies_and_the_card():
    lines = CopyBenchmark.from_data(DATA).to_markdown().splitlines()
    assert lines[0] == "a card, torch 2.13.0, Triton 3.9.0, copy 4000 GB/s"
    assert lines[4:] == [
        "| 1 | apart | 4.0 | 2.0 | 0.50 | 1000 | 2000 | 50% |",
        "| 16 | apart | 64.0 | 32.0 | 0.50 | 1000 | 2000 | 50% |",
    ]


def test_the_trees_script_measures(tmp_path: Path):
    python = tmp_path / "python"
    answer = f"echo '{json.dumps(DATA)}'"
    python.write_text(f"#!/bin/sh\ncase $1 in */bench_block_copies.py) {answer};; esac")
    python.chmod(0o755)
    measured = copy_bench.measure([python], tmp_path)
    assert isinstance(measured, CopyBenchmark)
    assert json.loads(json.dumps(measured.to_data())) == DATA
