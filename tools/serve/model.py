"""The small model that `serve` and `demo` use: made here, nothing is fetched."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from tools import inside
from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import run
from tools.base.project import Project

NAME = "tagma-tiny"

_PROGRAM = inside.FOLDER / "make_model.py"
_SCRATCH = "scratch-"


def documents(tree: Path) -> list[Path]:
    """Return upstream's documentation pages, in a fixed order.

    Raises:
        ToolError: The tree holds none.
    """
    pages = sorted((tree / "docs").rglob("*.md"))
    if not pages:
        raise ToolError(
            Outcome.OUT_OF_SYNC,
            f"{tree / 'docs'} holds no documentation pages",
            ("Make the tree: python -m tools apply",),
        )
    return pages


def ensure_model(project: Project, python: Path) -> Path:
    """Return the folder of the model, making it if its inputs changed.

    The caller holds the project's lock.

    Args:
        project: The project whose documentation the tokenizer is trained on.
        python: The interpreter of the serving environment.

    Raises:
        ToolError: There is no documentation, or the program failed.
    """
    pages = [page.read_bytes() for page in documents(project.tree)]
    total = hashlib.sha256(_PROGRAM.read_bytes())
    for page in pages:
        total.update(hashlib.sha256(page).digest())
    home = project.build / "model"
    folder = home / total.hexdigest()[:16]
    if folder.is_dir():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    for left in home.glob(f"{_SCRATCH}*"):  # of a killed run
        shutil.rmtree(left, ignore_errors=True)
    with (
        console.step("make the model and its tokenizer"),
        tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=home) as scratch,
    ):
        corpus, made = Path(scratch) / "corpus.md", Path(scratch) / "model"
        corpus.write_bytes(b"".join(pages))
        made.mkdir()
        run([python, _PROGRAM, corpus, made])
        os.replace(made, folder)
    return folder
