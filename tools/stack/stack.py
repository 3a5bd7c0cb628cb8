"""The series as the tree has it: its commits, and where the work tree stands."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.tree import underway
from tools.tree.patch import Patch
from tools.tree.placed import PlacedPatch
from tools.tree.series import Series
from tools.tree.state import State
from tools.tree.tree import Tree


@dataclass(frozen=True)
class Stack:
    """The patches of a tree that is what its inputs make.

    Args:
        tree: The tree.
        state: Its state.
        names: The patches, in order.
        commits: The overlays' commit, then one for each patch.
        position: How many patches are applied to the work tree.
    """

    tree: Tree
    state: State
    names: tuple[str, ...]
    commits: tuple[str, ...]
    position: int

    @classmethod
    def read(
        cls, tree: Tree, *, edits: bool = False, rebasing: bool = False
    ) -> "Stack":
        """Read the stack. The caller holds the project's lock.

        Args:
            tree: The tree.
            edits: Accept edits of files in the work tree.
            rebasing: Accept a rebase under way, since nothing will change.

        Raises:
            ToolError: The tree is not current, is in the middle of a rebase or the
                like, or has edits.
        """
        tree.recover()
        if not rebasing:
            underway.refuse(tree.project)
        state = tree.require_current(edits=edits, popped=True)
        if edits:
            tree.refuse_operation()
        commits = tree.commits(state)
        if tree.repository.resolve("HEAD") != state.here:
            tree.refuse_edits()
        names = Series.read(tree.project.patches).names
        return cls(tree, state, names, commits, commits.index(state.here))

    @property
    def repository(self) -> Repository:
        """The tree's repository."""
        return self.tree.repository

    @property
    def top(self) -> str:
        """The last applied patch; "" if none is."""
        return self.names[self.position - 1] if self.position else ""

    @cached_property
    def patches(self) -> tuple[Patch, ...]:
        """The parsed patches."""
        folder = self.tree.project.patches
        return tuple(
            Patch.parse(name, (folder / name).read_bytes()) for name in self.names
        )

    @cached_property
    def trees(self) -> tuple[str, ...]:
        """The git tree ids of `commits`."""
        wanted = [f"{commit}^{{tree}}" for commit in self.commits]
        return tuple(self.repository.git("rev-parse", *wanted).text.split())

    @property
    def placed(self) -> tuple[PlacedPatch, ...]:
        """The patches with the trees that they were made from."""
        return tuple(
            PlacedPatch(patch, before, after)
            for patch, before, after in zip(
                self.patches, self.trees, self.trees[1:], strict=False
            )
        )

    def find(self, query: str) -> int:
        """Return the place in the series, from 1, of the patch that a user means.

        Raises:
            ToolError: There is no such patch, or more than one.
        """
        return self.names.index(find(self.names, query)) + 1

    def go(self, position: int) -> "Stack":
        """Move the work tree so that `position` patches are applied.

        Raises:
            ToolError: A file that git ignores is in the way.
        """
        self.tree.go(self.commits[position])
        return Stack(self.tree, self.state, self.names, self.commits, position)


def find(names: Sequence[str], query: str) -> str:
    """Return the name that a user means by a number, a name or the start of one.

    >>> find(["0001-build.patch", "0010-bench.patch"], "1")
    '0001-build.patch'
    >>> find(["0001-build.patch", "0010-bench.patch"], "be")
    '0010-bench.patch'

    Raises:
        ToolError: There is no such patch, or more than one.
    """
    if query in names or f"{query}.patch" in names:
        return query if query in names else f"{query}.patch"
    if re.fullmatch(r"[0-9]+", query):
        found = [name for name in names if int(name[:4]) == int(query)]
    else:
        found = [name for name in names if query and _begins(name, query)]
    if len(found) == 1:
        return found[0]
    raise ToolError(
        Outcome.USAGE,
        f"{query!r} means {len(found)} patches" if found else f"no patch {query!r}",
        _how_to_name(query, found),
        tuple(found or names),
    )


def _how_to_name(query: str, found: Sequence[str]) -> tuple[str, ...]:
    if not (found and query.isdecimal()):
        return ("Name one of them: a number, a name, or the start of one",)
    return (
        "Name one of them: a name, or the start of one",
        "or part their numbers: python -m tools renumber",
    )


def _begins(name: str, query: str) -> bool:
    return name.startswith(query) or name[5:].startswith(query)
