"""Files that are replaced in one step: a reader sees the old one or the new one."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.base import fault


def write(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file in one step, making its folder.

    Args:
        path: The file.
        data: Its content.
        mode: Its permissions; None: those of a new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    fault.point()
    partial.write_bytes(data)
    if mode is not None:
        partial.chmod(mode)
    fault.point()
    os.replace(partial, path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object in one step, for people to read too."""
    write(path, (json.dumps(value, indent=2) + "\n").encode())


def remove(path: Path) -> None:
    """Remove a file, if it is there, and what a killed `write` of it left."""
    fault.point()
    path.unlink(missing_ok=True)
    _partial(path).unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    """Rename a file or folder in one step."""
    fault.point()
    os.replace(source, target)


def remove_folder(folder: Path) -> None:
    """Remove a folder, if it is there: all of it is gone at once."""
    gone = folder.with_name(f"{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    if folder.exists():
        move(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")
