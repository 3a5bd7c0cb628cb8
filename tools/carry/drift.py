"""Drift: what upstream changed between two releases near our hunks, and the risk."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tools.base.git import Repository
from tools.base.project import Project
from tools.carry.definitions import Definitions
from tools.carry.name_drift import NameDrift, compare, names_data
from tools.carry.place import LineChange, Scopes, changes, distance, overlap
from tools.carry.uses import collect
from tools.source.pin import Pin
from tools.tree.compose import base_reference
from tools.tree.hunk import Hunk, places, split_lines
from tools.tree.patch import Patch
from tools.tree.series import Series

_NEAR = 3  # as far as a text apply with usual context looks
_SHOWN = 6


class Closeness(Enum):
    """How close upstream's changes come to a hunk, the farthest first."""

    UNTOUCHED = "untouched"  # the file is the same
    FILE = "file"  # it changed elsewhere
    SCOPE = "scope"  # the same function or class changed
    NEAR = "near"  # lines beside the hunk changed
    OVERLAP = "overlap"  # the hunk's own lines changed
    GONE = "gone"  # the file was renamed or deleted

    @property
    def risk(self) -> int:
        """The risk that the hunk fails or means something else: 0 to 5."""
        return list(Closeness).index(self)


@dataclass(frozen=True)
class HunkDrift:
    """What upstream did around one hunk.

    Args:
        patch: The patch.
        path: The file.
        header: The hunk.
        closeness: How close it came.
        scope: The function or class around the hunk.
        file_changes: How many places of the file changed.
        cause: The closest change's lines, with their signs.
    """

    patch: str
    path: str
    header: str
    closeness: Closeness
    scope: str = ""
    file_changes: int = 0
    cause: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drift:
    """What upstream did between two releases, as far as it concerns us."""

    old: str
    new: str
    hunks: tuple[HunkDrift, ...]
    used: tuple[NameDrift, ...]

    @property
    def names(self) -> list[dict[str, Any]]:
        """The used names that changed, the worst first."""
        return names_data(self.used)

    def risk(self, patch: str) -> int:
        """Return a patch's risk: that of its worst hunk."""
        return max(
            (h.closeness.risk for h in self.hunks if h.patch == patch), default=0
        )

    def data(self) -> dict[str, Any]:
        """Return it for programs."""
        patches = list(dict.fromkeys(hunk.patch for hunk in self.hunks))
        return {
            "old": self.old,
            "new": self.new,
            "patches": {name: self.risk(name) for name in patches},
            "hunks": [
                {
                    "patch": hunk.patch,
                    "file": hunk.path,
                    "hunk": hunk.header,
                    "closeness": hunk.closeness.value,
                    "risk": hunk.closeness.risk,
                    "scope": hunk.scope,
                    "changes_in_file": hunk.file_changes,
                    "cause": list(hunk.cause),
                }
                for hunk in self.hunks
            ],
            "names": self.names,
        }


def measure(project: Project, repository: Repository, old: Pin, new: Pin) -> Drift:
    """Compare two imported releases.

    Args:
        project: The project, whose patches and overlays count.
        repository: Where the releases are.
        old: The older one.
        new: The newer one.
    """
    sides = [base_reference(pin) for pin in (old, new)]
    hunks = [
        _hunk(repository, path.name, hunk, *sides)
        for path in Series.read(project.patches).paths
        for hunk in Patch.parse(path.name, path.read_bytes()).hunks()
    ]
    first, second = (Definitions(repository, side) for side in sides)
    used = compare(collect(project.root), first, second)
    return Drift(old.version, new.version, tuple(hunks), tuple(used))


def _hunk(
    repository: Repository, patch: str, hunk: Hunk, old: str, new: str
) -> HunkDrift:
    names = [repository.resolve(f"{side}:{hunk.path}") for side in (old, new)]
    before, after = names
    if before is None or after is None:
        return HunkDrift(patch, hunk.path, hunk.header, Closeness.GONE)
    if before == after:
        return HunkDrift(patch, hunk.path, hunk.header, Closeness.UNTOUCHED)
    content = repository.git("cat-file", "blob", before).stdout
    span = _span(content, hunk)
    scopes = Scopes(content)
    python = Path(hunk.path).suffix == ".py"
    scope = scopes.at(span.start) if python else ""
    found = changes(repository, before, after)
    closeness, cause = _closest(found, span, scopes if python else None, scope)
    return HunkDrift(
        patch, hunk.path, hunk.header, closeness, scope, len(found), cause[:_SHOWN]
    )


def _span(content: bytes, hunk: Hunk) -> range:
    """Return a hunk's lines in the release without the patches before it."""
    found = places(split_lines(content), hunk.old_lines) if hunk.old_lines else []
    start = min(found, key=lambda at: abs(at - hunk.start), default=hunk.start)
    return range(start, start + max(1, len(hunk.old_lines)))


def _closest(
    found: list[LineChange], span: range, scopes: Scopes | None, scope: str
) -> tuple[Closeness, tuple[str, ...]]:
    for change in found:
        if overlap(change.old, span):
            return Closeness.OVERLAP, change.text
    nearest = min(found, key=lambda change: distance(change.old, span))
    if distance(nearest.old, span) <= _NEAR:
        return Closeness.NEAR, nearest.text
    if scopes and scope:
        for change in found:
            if any(_inside(scopes.at(line), scope) for line in _lines(change)):
                return Closeness.SCOPE, change.text
    return Closeness.FILE, ()


def _inside(name: str, scope: str) -> bool:
    return name == scope or name.startswith(f"{scope}.")


def _lines(change: LineChange) -> Iterator[int]:
    yield from change.old or [change.old.start]
