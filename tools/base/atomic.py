"""Files that are replaced in one step: a reader sees the old one or the new one."""

import os
from pathlib import Path

from tools.base import fault


def write(path: Path, data: bytes) -> None:
    """Write a file in one step, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    fault.point()
    partial.write_bytes(data)
    fault.point()
    os.replace(partial, path)


def remove(path: Path) -> None:
    """Remove a file, if it is there, and what a killed `write` of it left."""
    fault.point()
    path.unlink(missing_ok=True)
    _partial(path).unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    """Rename a file or folder in one step."""
    fault.point()
    os.replace(source, target)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")
