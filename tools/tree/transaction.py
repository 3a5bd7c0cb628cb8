"""Changes to files of the checkout that are made as a whole or not at all."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.base import atomic
from tools.base.project import Project
from tools.tree.state import State

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class File:
    """What a file will hold."""

    data: bytes
    executable: bool = False

    @classmethod
    def read(cls, path: Path) -> "File | None":
        """Return what a file holds; None if there is none."""
        try:
            return cls(path.read_bytes(), bool(path.stat().st_mode & 0o100))
        except FileNotFoundError:
            return None

    def write(self, path: Path) -> None:
        """Write the file in one step, with its folder."""
        atomic.write(path, self.data, 0o755 if self.executable else 0o644)


# By path in the checkout; None removes the file.
Changes = Mapping[str, File | None]


def write(changes: Changes, root: Path) -> None:
    """Make changes in a folder."""
    for name, file in changes.items():
        if file:
            file.write(root / name)
        else:
            atomic.remove(root / name)


@dataclass(frozen=True)
class Transaction:
    """Staged changes of a checkout. From `stage` on they will happen.

    A killed run leaves them staged, and the next run completes them.

    Args:
        project: The checkout.
        title: The command that makes them, for people.
        state: What the tree's state will be.
        was: What it was; None: there was no tree.
        before: Digest of each changed file as it was; "": it did not exist.
        after: Digest of each changed file as it will be; "": removed.
        number: Names the folder with a copy of what is replaced or removed; 0:
            nothing changes.
        spent: Folders of the build folder that are needless once it has happened.
    """

    project: Project
    title: str
    state: State
    was: State | None
    before: dict[str, str]
    after: dict[str, str]
    number: int
    spent: tuple[str, ...] = ()

    @classmethod
    def stage(
        cls,
        project: Project,
        title: str,
        changes: Changes,
        state: State,
        spent: tuple[str, ...] = (),
    ) -> "Transaction":
        """Write the changes to the build folder; the manifest comes last.

        Args:
            project: The checkout.
            title: The command, for people.
            changes: What files will hold; those that hold it already are left out.
            state: What the tree's state will be.
            spent: Folders of the build folder to remove at the end.
        """
        real = {
            name: file
            for name, file in changes.items()
            if File.read(project.root / name) != file
        }
        folder = _folder(project)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write(real, folder)
        before = {name: digest(project.root / name) for name in real}
        transaction = cls(
            project,
            title,
            state,
            State.read(State.file(project)),
            before,
            {name: digest(folder / name) for name in real},
            _keep(project, [name for name in real if before[name]]) if real else 0,
            spent,
        )
        atomic.write(folder / _MANIFEST, transaction.to_bytes())
        return transaction

    @classmethod
    def pending(cls, project: Project) -> "Transaction | None":
        """Return the staged changes of a killed run, if there are any."""
        return cls.read(project, _folder(project) / _MANIFEST)

    @classmethod
    def last(cls, project: Project) -> "Transaction | None":
        """Return the last one that has happened and whose copies are there."""
        found = sorted(
            int(path.stem)
            for path in project.dropped.glob("*.json")
            if path.stem.isdecimal() and path.with_suffix("").is_dir()
        )
        if not found:
            return None
        return cls.read(project, project.dropped / f"{found[-1]}.json")

    @classmethod
    def read(cls, project: Project, path: Path) -> "Transaction | None":
        """Read a manifest; None if there is none."""
        try:
            fields: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        fields["state"] = State(**fields["state"])
        fields["was"] = State(**fields["was"]) if fields["was"] else None
        fields["spent"] = tuple(fields["spent"])
        return cls(project, **fields)

    def to_bytes(self) -> bytes:
        """Return the manifest, for `read`."""
        fields = {key: value for key, value in vars(self).items() if key != "project"}
        return json.dumps(fields, default=asdict).encode()

    @property
    def kept(self) -> Path | None:
        """The folder with copies of what is replaced or removed."""
        return self.project.dropped / str(self.number) if self.number else None

    def carry_out(self) -> None:
        """Change the files; doing it twice is harmless.

        A file that was changed since the changes were staged is copied first.
        """
        folder, root = _folder(self.project), self.project.root
        found = {name: digest(root / name) for name in self.after}
        changed = [
            name
            for name, now in found.items()
            if now not in ("", self.before[name], self.after[name])
        ]
        if changed:
            _keep(self.project, changed)
        names = [name for name, after in self.after.items() if found[name] != after]
        write({name: File.read(folder / name) for name in names}, root)

    def finish(self) -> None:
        """Forget the changes, which have happened; the way back stays."""
        for name in self.spent:
            atomic.remove_folder(self.project.build / name)
        if self.kept:
            atomic.write(self.kept.with_suffix(".json"), self.to_bytes())
        atomic.remove(_folder(self.project) / _MANIFEST)
        shutil.rmtree(_folder(self.project), ignore_errors=True)


def digest(path: Path) -> str:
    """Return a digest of content and mode; "" if there is no file."""
    file = File.read(path)
    if not file:
        return ""
    return hashlib.sha256((b"x" if file.executable else b"-") + file.data).hexdigest()


def _keep(project: Project, names: list[str]) -> int:
    """Copy files of the checkout to a new folder under build/dropped."""
    project.dropped.mkdir(parents=True, exist_ok=True)
    numbers = (int(p.name) for p in project.dropped.iterdir() if p.name.isdecimal())
    number = 1 + max(numbers, default=0)
    folder = project.dropped / str(number)
    folder.mkdir()
    for name in names:
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(project.root / name, copy)
    return number


def _folder(project: Project) -> Path:
    return project.build / "rewrite"
