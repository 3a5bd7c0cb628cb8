"""What a full build lacks on this machine is named before it begins."""

import os
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.compile import toolchain


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree whose sources are at an address that refuses connections."""
    text = (
        "FetchContent_Declare(\n  {}\n  GIT_REPOSITORY http://127.0.0.1:9/{}.git\n)\n"
    )
    (tmp_path / "cmake").mkdir()
    for name, file in (
        ("oneDNN", "cmake/cpu_extension.cmake"),
        ("cutlass", "CMakeLists.txt"),
    ):
        (tmp_path / file).write_text(text.format(name, name))
    return tmp_path


@pytest.mark.parametrize(
    ("device", "missing"),
    [
        ("cpu", ["g++ 12.3", "oneDNN: http://127.0.0.1:9/oneDNN.git"]),
        ("cuda", ["nvcc", "torch", "cutlass: http://127.0.0.1:9/cutlass.git"]),
    ],
)
def test_a_full_build_lists_all_that_is_missing(tree, monkeypatch, device, missing):
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(ToolError) as error:
        toolchain.require(tree, device, "2.0+cpu")
    assert error.value.outcome is Outcome.MISSING_TOOL
    assert len(error.value.details) == len(missing)
    for line, part in zip(error.value.details, missing, strict=True):
        assert part in line
    assert f"--device {device}" in error.value.next_steps[0]


def test_a_local_copy_of_a_source_needs_no_network(tree, monkeypatch):
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setenv("CMAKE_ARGS", "-DFETCHCONTENT_SOURCE_DIR_ONEDNN=/copy")
    with pytest.raises(ToolError) as error:
        toolchain.require(tree, "cpu", None)
    assert error.value.details == ("missing: g++ 12.3 or newer",)
