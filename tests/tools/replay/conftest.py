"""The engine that the tests of `replay` drive."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from checkout import REPOSITORY


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The extension, compiled from this checkout without CMake."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    target = tmp_path_factory.mktemp("engine") / "tagma.abi3.so"
    source = REPOSITORY / "csrc_tagma" / "tagma_bindings.cpp"
    subprocess.run(
        [compiler, "-std=c++17", "-O1", "-fPIC", "-shared",
         "-DPy_LIMITED_API=0x030B0000", f"-I{sysconfig.get_path('include')}",
         source, "-o", target],
        check=True,
    )  # fmt: skip
    return target
