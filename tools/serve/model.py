"""The small model that `serve` and `demo` use: made here, nothing is fetched."""

import shutil
import tempfile
from pathlib import Path

from tools import inside
from tools.base import atomic, console
from tools.base.digest import sha256_of_all
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import run
from tools.base.project import CHECKOUT, Project
from tools.serve.server import Server

NAME = "tagma-tiny"

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
    pages = documents(project.tree)
    home = project.build / "model"
    folder = home / sha256_of_all([*inside.sources(), *pages])[:16]
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
        corpus.write_bytes(b"".join(page.read_bytes() for page in pages))
        made.mkdir()
        run(inside.command(python, "make_model", corpus, made), cwd=CHECKOUT)
        atomic.move(made, folder)
    return folder


def tokenize(server: Server, text: str) -> list[int]:
    """Return the ids of a text's tokens, from a server of this model.

    Raises:
        ToolError: The server refused it or is gone.
    """
    tokens: list[int] = server.post(
        "/tokenize", {"model": NAME, "prompt": text, "add_special_tokens": False}
    )["tokens"]
    return tokens
