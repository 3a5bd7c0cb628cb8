"""A scratch copy of the checkout that is carried to another release and tested."""

import shutil
import sys
from pathlib import Path

from tools.base.process import run_visibly
from tools.base.project import CHECKOUT, Project
from tools.check.suites import spread

_PARTS = ("patches", "upstream", "csrc_tagma", "vllm_overlay", "tests")


def prepare(project: Project) -> Path:
    """Copy what a rebase reads into a fresh folder and return that."""
    scratch = project.build / "rehearsal"
    shutil.rmtree(scratch, ignore_errors=True)
    for part in _PARTS:
        shutil.copytree(project.root / part, scratch / part)
    return scratch


def run(
    scratch: Path,
    release: str,
    venv: Path,
    workers: int,
    words: tuple[str, ...],
    *,
    to_stderr: bool = False,
) -> int:
    """Rebase the copy, and run the overlays' tests on the release's Python.

    Args:
        scratch: What `prepare` made.
        release: The release.
        venv: The environment whose compiled members serve.
        workers: Processes to spread the tests over.
        words: More arguments for pytest.
        to_stderr: Send all output to standard error.

    Returns:
        The exit status of the command that ended it.
    """
    trial = ("trial", "--environment", str(venv), "--", *spread(workers), *words)
    for command in (("rebase", release), trial):
        tools = (sys.executable, "-m", "tools", "--project", scratch)
        status = run_visibly([*tools, *command], cwd=CHECKOUT, to_stderr=to_stderr)
        if status != 0:
            return status
    return 0
