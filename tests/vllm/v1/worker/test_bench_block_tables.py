# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The kernels' benchmark: its cases, and its whole way on tiny ones."""

import importlib.util
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

import vllm
from vllm.platforms import current_platform

# Nothing here outlives a test.
pytestmark = pytest.mark.skip_global_cleanup

SCRIPT = Path(__file__).with_name("bench_block_tables.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    package = Path(vllm.__file__).parent
    return subprocess.run(
        [sys.executable, SCRIPT, package, *arguments], capture_output=True, text=True
    )


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, SCRIPT.stem, module)
    spec.loader.exec_module(module)
    return module


def test_every_case_is_listed_once(bench: ModuleType):
    expected = set(
        product(
            ("prefill", "decode", "block table"),
            (4096, 16384, 131072),
            (1, 64, 512),
            (1, 2, 8, 64),
        )
    )
    listed = [(c.step, c.context, c.requests, c.ranges) for c in bench.cases()]
    assert set(listed) == expected and len(listed) == len(expected)


def test_ranges_move_fewer_bytes(bench: ModuleType):
    """A block's number is 4 bytes, a position and a slot 8 each."""
    gather = bench.Case("block table", context=131072, requests=2, ranges=1)
    assert bench.bytes_moved(gather, "paged") == 2 * 8192 * 8
    assert bench.bytes_moved(gather, "tagma") == 2 * (8192 * 4 + 16)
    prefill = bench.Case("prefill", context=131072, requests=2, ranges=2)
    assert prefill.query_len == 8192
    assert bench.bytes_moved(prefill, "paged") == 2 * (8192 * 16 + 512 * 4)
    assert bench.bytes_moved(prefill, "tagma") == 2 * (8192 * 16 + 24)


def test_dry_run_takes_the_whole_way():
    """All kernels agree and are timed, in the interpreter."""
    done = run("--dry-run", "--launches", "1")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["device"] == "interpreter"
    timed = {(t["step"], t["ranges"], t["kernel"]) for t in result["timings"]}
    assert timed == set(
        product(
            ("prefill", "decode", "block table"),
            (1, 3),
            ("paged", "tagma", "tagma + fallback"),
        )
    )
    assert all(t["median_us"] > 0 for t in result["timings"])


@pytest.mark.skipif(
    current_platform.device_type == "cuda", reason="would run the benchmark"
)
def test_no_gpu_is_said_in_a_line():
    done = run()
    assert done.returncode == 0, done.stderr
    assert "sees no CUDA device" in json.loads(done.stdout)["skipped"]


def test_no_launches_is_a_usage_error():
    done = run("--launches", "0")
    assert done.returncode == 2
    assert "--launches must be at least 1" in done.stderr
