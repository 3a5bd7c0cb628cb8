"""Folders for the time of one step, which a killed run cannot leave for good."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.base.project import Project

_PREFIX = "scratch-"


@contextmanager
def scratch(project: Project) -> Iterator[Path]:
    """Make a folder for the time of the block, in the build folder."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=project.build) as path:
        yield Path(path)


def remove_left(project: Project) -> None:
    """Remove the folders of killed runs. The caller holds the project's lock."""
    for left in project.build.glob(f"{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
