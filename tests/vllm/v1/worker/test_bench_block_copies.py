# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The benchmark of block copies: its whole way on tiny cases, and without a GPU."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

import vllm
from vllm.platforms import current_platform

# Nothing here outlives a test.
pytestmark = pytest.mark.skip_global_cleanup

SCRIPT = Path(__file__).with_name("bench_block_copies.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    package = Path(vllm.__file__).parent
    return subprocess.run(
        [sys.executable, SCRIPT, package, *arguments], capture_output=True, text=True
    )


def test_dry_run_takes_the_whole_way():
    """Both copies agree and are timed, in the interpreter."""
    done = run("--dry-run", "--launches", "1")
    assert done.returncode == 0, done.stderr
    timings = json.loads(done.stdout)["timings"]
    timed = {(t["blocks"], t["order"], t["kernel"]) for t in timings}
    assert timed == set(product((1, 3), ("together", "apart"), ("upstream", "tagma")))
    # A block is read and written, in two layers of 64 bytes.
    assert all(t["bytes_moved"] == 256 * t["blocks"] for t in timings)


@pytest.mark.skipif(
    current_platform.device_type == "cuda", reason="would run the benchmark"
)
def test_no_gpu_is_said_in_a_line():
    done = run()
    assert done.returncode == 0, done.stderr
    assert "sees no CUDA device" in json.loads(done.stdout)["skipped"]
