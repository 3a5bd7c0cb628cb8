"""Only the checkout's own build/ is ignored; a package of that name is checked."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import REPOSITORY

FILES = {
    "build/made.py": True,
    "vllm_overlay/theirs.py": True,
    "tests/vllm/test_theirs.py": True,
    "tools/build/ours.py": False,
    "tools/vllm_overlay/ours.py": False,
    "tests/tools/build/test_ours.py": False,
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout of nothing but its settings and faulty files."""
    for name in (".gitignore", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import os\n")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def test_ruff_skips_these_folders_at_the_root_only(copy: Path) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    found = subprocess.run(
        [
            *(ruff, "check", "--no-cache", "--no-respect-gitignore"),
            *("--select=F401", "--output-format=concise", "."),
        ],
        cwd=copy,
        capture_output=True,
        text=True,
    ).stdout
    assert {name: name not in found for name in FILES} == FILES, found


def test_git_ignores_the_roots_build_only(copy: Path) -> None:
    found = subprocess.run(
        ["git", "-C", copy, "ls-files", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert {name for name in FILES if name not in found} == {"build/made.py"}
