"""How a patch lands on another release, as a closed set."""

from dataclasses import dataclass, field
from enum import Enum

from tools.tree.threeway import Conflict


class Landing(Enum):
    """What became of a patch. The value is the name in JSON and in reports."""

    CLEAN = "clean"  # the text applies at its very lines, and the merge agrees
    MOVED = "moved"  # the same lines stand elsewhere; text and merge agree
    MERGED = "merged"  # only the three-way merge can place it
    RENAMED = "renamed"  # upstream renamed a file; the merge followed
    RESOLVED = "resolved"  # a conflict, solved by a stored resolution or by hand
    UPSTREAM = "upstream"  # upstream has it; dropped
    SKIPPED = "skipped"  # dropped by the user
    CONFLICT = "conflict"  # both sides changed the same lines
    DELETED = "deleted"  # upstream deleted a file that it changes
    MISPLACED = "misplaced"  # it would land in another function or class

    @property
    def lands(self) -> bool:
        """Whether the patch is part of the new series."""
        return self in _LANDS

    @property
    def stops(self) -> bool:
        """Whether the user must act."""
        return self in (Landing.CONFLICT, Landing.DELETED, Landing.MISPLACED)


_LANDS = frozenset(
    {
        Landing.CLEAN,
        Landing.MOVED,
        Landing.MERGED,
        Landing.RENAMED,
        Landing.RESOLVED,
    }
)


@dataclass(frozen=True)
class Carried:
    """What the attempt to carry one patch gave.

    Args:
        name: The patch's file name.
        landing: What became of it.
        tree: The tree that results; for a landing that stops, with conflict marks.
        details: What a person should know: evidence, destinations, doubts.
        conflicts: The files that stop it.
    """

    name: str
    landing: Landing
    tree: str
    details: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = field(default=(), compare=False)
