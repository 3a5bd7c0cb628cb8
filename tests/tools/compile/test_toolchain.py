"""`build`: what it needs before it begins, as a user sees it."""

import json
import os
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.compile import toolchain


def failure(done) -> dict:
    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] != 0
    return report


@pytest.mark.parametrize("options", [[], ["--editable"], ["--mode", "full"]])
def test_without_a_tree_it_names_apply(make_checkout, options):
    checkout = make_checkout(lock=False)
    report = failure(checkout.cli("build", "--json", *options))
    assert report["outcome"] == Outcome.OUT_OF_SYNC.value
    assert f"--project {checkout.project.root} apply" in report["next_steps"][0]


def test_a_tree_older_than_its_inputs_is_refused(checkout):
    (checkout.project.root / "vllm_overlay" / "more.py").write_text("")
    report = failure(checkout.cli("build", "--json"))
    assert "older than" in report["message"]
    assert f"--project {checkout.project.root} apply" in report["next_steps"][0]
    assert not checkout.project.venv.exists()


def test_an_edited_tree_is_refused(checkout):
    (checkout.project.tree / "vllm" / "core.py").write_text("edited\n")
    report = failure(checkout.cli("build", "--json"))
    assert report["outcome"] == Outcome.TREE_EDITED.value
    assert report["details"] == ["vllm/core.py"]


def test_an_editable_install_has_no_other_device(checkout):
    done = checkout.cli("build", "--editable", "--device", "cuda")
    assert done.returncode == 2
    assert "--editable" in done.stderr


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
