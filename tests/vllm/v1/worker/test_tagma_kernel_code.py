# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The code generated for GPUs has the loads that it should have; needs no GPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vllm

if importlib.util.find_spec("triton") is None:
    pytest.skip("no Triton to compile with", allow_module_level=True)

# Nothing here outlives a test.
pytestmark = pytest.mark.skip_global_cleanup

ARCHS = (80, 90, 100, 120)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict]:
    """What each kernel becomes for each architecture, by a process of its own.

    Under the interpreter, and where there is no GPU, this one has no compiler.
    """
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    script = Path(__file__).with_name("kernel_code.py")
    package = Path(vllm.__file__).parent
    done = subprocess.run(
        [sys.executable, script, package, *map(str, ARCHS)],
        env=env,
        check=True,
        stdout=subprocess.PIPE,
    )
    codes = json.loads(done.stdout)["kernels"]
    return {(code["label"], code["arch"]): code for code in codes}


@pytest.mark.parametrize("arch", ARCHS)
def test_no_table_load_per_position(compiled, arch: int):
    """Paged loads its table for every position and block; ranges need no such load."""
    loads = {
        label: code["table_loads"]
        for (label, code_arch), code in compiled.items()
        if code_arch == arch
    }
    assert loads == {
        "slots, paged": 1,
        "slots, tagma": 0,
        "slots, tagma + fallback": 1,
        "block table, paged gather": 1,
        "block table, tagma": 0,
        "block table, tagma + fallback": 1,
        "block copy, tagma": 0,
    }


@pytest.mark.parametrize("arch", ARCHS)
def test_fewer_loads_and_no_spills(compiled, arch: int):
    for kind, paged in (("slots", "paged"), ("block table", "paged gather")):
        tagma, base = (compiled[f"{kind}, {name}", arch] for name in ("tagma", paged))
        assert tagma["sass_loads"] < base["sass_loads"]
        assert tagma["sass_stores"] == base["sass_stores"]
    assert not any(code["spills"] for code in compiled.values())


@pytest.mark.parametrize("arch", ARCHS)
def test_a_block_is_copied_in_the_widest_words(compiled, arch: int):
    """A thread's words are 16 bytes; the kernel has two loads and stores of a tile."""
    words = 8192 // (128 * 16)
    code = compiled["block copy, tagma", arch]
    assert code["sass_stores"] == 2 * words
    # Beside them: three numbers of the segment, four of the sequence, three of a run.
    assert code["sass_loads"] == 2 * words + 3 + 4 + 3
