"""The small model is made once for its inputs, whole or not at all."""

import shutil
from pathlib import Path

import pytest

from tools import inside
from tools.base.errors import ToolError
from tools.base.project import Project
from tools.serve.model import ensure_model

# Stands in for the environment's Python: takes -m, the program, corpus and folder.
PYTHON = """\
#!/bin/sh
cat "$3" >> "{folder}/corpora"
touch "$4/config.json"
{then}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    docs = tmp_path / "build" / "tree" / "docs"
    (docs / "serving").mkdir(parents=True)
    (docs / "a.md").write_text("first\n")
    (docs / "serving" / "b.md").write_text("second\n")
    (docs / "picture.png").write_bytes(b"\xff")
    return Project(tmp_path, tmp_path / "build", tmp_path / "cache")


def python(folder: Path, then: str = "") -> Path:
    path = folder / "python"
    path.write_text(PYTHON.format(folder=folder, then=then))
    path.chmod(0o755)
    return path


def test_it_is_made_once_from_all_pages(project: Project, tmp_path: Path) -> None:
    first = ensure_model(project, python(tmp_path))
    assert (first / "config.json").is_file()
    assert ensure_model(project, python(tmp_path)) == first
    assert (tmp_path / "corpora").read_text() == "first\nsecond\n"


def test_other_documentation_gives_another_model(
    project: Project, tmp_path: Path
) -> None:
    first = ensure_model(project, python(tmp_path))
    (project.tree / "docs" / "a.md").write_text("changed\n")
    assert ensure_model(project, python(tmp_path)) != first


def test_a_failed_or_killed_run_leaves_no_model(
    project: Project, tmp_path: Path
) -> None:
    with pytest.raises(ToolError, match="failed with status 3"):
        ensure_model(project, python(tmp_path, "exit 3"))
    home = project.build / "model"
    assert list(home.iterdir()) == []
    (home / "scratch-killed" / "model").mkdir(parents=True)
    made = ensure_model(project, python(tmp_path))
    assert list(home.iterdir()) == [made]


def test_a_tree_without_documentation_is_named(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path / "build", tmp_path)
    with pytest.raises(ToolError, match="no documentation pages"):
        ensure_model(project, python(tmp_path))


def test_another_module_beside_the_program_gives_another_model(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure_model(project, python(tmp_path))
    copy = tmp_path / "inside"
    shutil.copytree(inside.FOLDER, copy)
    monkeypatch.setattr(inside, "FOLDER", copy)
    assert ensure_model(project, python(tmp_path)) == first
    (copy / "small_model.py").write_text("LAYERS = 4\n")
    assert ensure_model(project, python(tmp_path)) != first
