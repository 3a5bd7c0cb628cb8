"""Changes to patches and overlays that are made as a whole or not at all."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.base.project import Project
from tools.tree import overlay

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class File:
    """What a file will hold."""

    data: bytes
    executable: bool = False

    def write(self, path: Path) -> None:
        """Write the file in one step, with its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        partial.write_bytes(self.data)
        partial.chmod(0o755 if self.executable else 0o644)
        os.replace(partial, path)


# By path in the checkout; None removes the file.
Changes = Mapping[str, File | None]


def copy_inputs(root: Path, target: Path) -> None:
    """Copy what determines the tree of the checkout `root` to another folder."""
    for folder in ("patches", *overlay.FOLDERS):
        if (root / folder).is_dir():
            shutil.copytree(root / folder, target / folder)
    (target / "upstream").mkdir()
    shutil.copy(root / "upstream" / "pin.toml", target / "upstream")


def write(changes: Changes, root: Path) -> None:
    """Make changes in a folder."""
    for name, file in changes.items():
        if file:
            file.write(root / name)
        else:
            (root / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Transaction:
    """Staged changes of a checkout. From `stage` on they will happen.

    A killed run leaves them staged, and the next run completes them.

    Args:
        project: The checkout.
        state: What the tree's state will be, for the caller.
        before: Digest of each changed file as it was; "": it did not exist.
        after: Digest of each changed file as it will be; "": removed.
        kept: The folder that has a copy of what is replaced or removed; "": nothing
            is.
    """

    project: Project
    state: dict[str, Any]
    before: dict[str, str]
    after: dict[str, str]
    kept: str

    @classmethod
    def stage(
        cls, project: Project, changes: Changes, state: dict[str, Any]
    ) -> "Transaction":
        """Write the changes to the build folder; the manifest comes last."""
        folder = _folder(project)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write(changes, folder)
        before = {name: _digest(project.root / name) for name in changes}
        after = {name: _digest(folder / name) for name in changes}
        kept = ""
        if replaced := [name for name in changes if before[name]]:
            kept = str(_keep(project, replaced))
        record: dict[str, Any] = {
            "state": state,
            "before": before,
            "after": after,
            "kept": kept,
        }
        File(json.dumps(record).encode()).write(folder / _MANIFEST)
        return cls(project, **record)

    @classmethod
    def pending(cls, project: Project) -> "Transaction | None":
        """Return the staged changes of a killed run, if there are any."""
        try:
            text = (_folder(project) / _MANIFEST).read_text("utf-8")
        except FileNotFoundError:
            return None
        return cls(project, **json.loads(text))

    def carry_out(self) -> None:
        """Change the files; doing it twice is harmless.

        A file that was changed since the changes were staged is copied first.
        """
        folder = _folder(self.project)
        found = {name: _digest(self.project.root / name) for name in self.after}
        changed = [
            name
            for name, digest in found.items()
            if digest not in ("", self.before[name], self.after[name])
        ]
        if changed:
            _keep(self.project, changed)
        for name, after in self.after.items():
            path = self.project.root / name
            if not after:
                path.unlink(missing_ok=True)
            elif found[name] != after:
                executable = bool((folder / name).stat().st_mode & 0o100)
                File((folder / name).read_bytes(), executable).write(path)

    def finish(self) -> None:
        """Forget the changes; they have happened."""
        (_folder(self.project) / _MANIFEST).unlink()
        shutil.rmtree(_folder(self.project), ignore_errors=True)


def _keep(project: Project, names: list[str]) -> Path:
    """Copy files of the checkout to a new folder under build/dropped."""
    dropped = project.build / "dropped"
    dropped.mkdir(parents=True, exist_ok=True)
    number = 1 + max(
        (int(path.name) for path in dropped.iterdir() if path.name.isdecimal()),
        default=0,
    )
    for name in names:
        copy = dropped / str(number) / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(project.root / name, copy)
    return dropped / str(number)


def _folder(project: Project) -> Path:
    return project.build / "rewrite"


def _digest(path: Path) -> str:
    """Return a digest of content and mode; "" if there is no file."""
    try:
        mode = b"x" if path.stat().st_mode & 0o100 else b"-"
        return hashlib.sha256(mode + path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""
