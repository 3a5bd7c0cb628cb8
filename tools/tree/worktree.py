"""The work tree: where it stands, what is in its way, and how it moves."""

import os
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tools.base import console
from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.tree.edits import Snapshot
from tools.tree.state import State

# What git keeps in its folder while such a command waits for its user.
_OPERATIONS = {
    "rebase": ("rebase-merge", "rebase-apply"),
    "cherry-pick": ("CHERRY_PICK_HEAD", "sequencer"),
    "merge": ("MERGE_HEAD",),
}


class WorkTree:
    """The work tree of a project. The caller holds the project's lock."""

    def __init__(self, project: Project):
        self.project = project
        self.repository = Repository(project.tree)
        self.state_file = State.file(project)

    @property
    def state(self) -> State | None:
        """The recorded state."""
        return State.read(self.state_file)

    def commits(self, state: State) -> tuple[str, ...]:
        """Return the commits of a state: the overlays', then one for each patch."""
        span = f"{state.overlays}..{state.commit}"
        listed = self.repository.git("rev-list", "--reverse", span)
        return (state.overlays, *listed.text.split())

    def go(self, commit: str) -> None:
        """Move the work tree, which has no edits, to a commit of the series.

        Raises:
            ToolError: A file that git ignores is in the way.
        """
        state = self.state
        assert state
        self.refuse_overwriting(commit)
        position = "" if commit == state.commit else commit
        self.move(replace(state, position=position))

    def move(self, state: State) -> None:
        """Move the work tree to the state's commit; a killed run repeats it."""
        replace(state, moving=True).write(self.state_file)
        self.repository.git("reset", "--hard", "--quiet", state.here)
        replace(state, moving=False).write(self.state_file)

    def drop_edits(self) -> Path | None:
        """Move edits out of the tree and return their copy, if there were any."""
        state = self.state
        if state is None:
            return None
        snapshot = Snapshot.take(self.repository, "apply --drop")
        for name in _OPERATIONS:
            self.repository.git(name, "--quit", check=False)
        if snapshot.commit == state.here:
            return None
        copy = snapshot.keep(self.project, state.here)
        console.note(f"dropped edits are kept in {copy}")
        self.move(state)
        self.repository.git("clean", "-fdq")
        return copy

    def refuse_edits(self) -> None:
        """Stop if the tree holds anything that its inputs did not put there.

        Raises:
            ToolError: It does; the error names what to do.
        """
        state = self.state
        if state is None:
            return
        self.refuse_operation()
        commits = self.repository.resolve("HEAD") != state.here
        paths = self.repository.changed_paths()
        if commits or paths:
            raise self._edited(commits, paths)

    def _edited(self, commits: bool, paths: list[str]) -> ToolError:
        """Return the error that names edits and what to do with them."""
        tree = self.project.tree
        what = "commits that are not in patches/" if commits else "uncommitted edits"
        steps: tuple[str, ...] = (
            "Keep them: python -m tools export",
            "Drop them (a copy is kept): python -m tools apply --drop",
        )
        if not commits:
            steps = (
                "Put them into the last applied patch: python -m tools refresh",
                "or make a patch of them: python -m tools new SUBJECT",
                *steps[1:],
            )
        if own := [path for path in paths if path.endswith("/")]:
            steps = (f"Move {own[0]} away: it is a git repository of its own",)
        shown = tuple(paths[:10]) + (("…",) if len(paths) > 10 else ())
        return ToolError(Outcome.TREE_EDITED, f"{tree} has {what}", steps, shown)

    def refuse_operation(self) -> None:
        """Stop in the middle of a rebase or the like by the user's own git.

        Raises:
            ToolError: One is under way.
        """
        for name, paths in _OPERATIONS.items():
            if any((self.repository.git_dir / path).exists() for path in paths):
                git = f"git -C {self.project.tree} {name}"
                raise ToolError(
                    Outcome.TREE_EDITED,
                    f"a git {name} is under way in {self.project.tree}",
                    (f"Finish it: {git} --continue", f"or give it up: {git} --abort"),
                )

    def refuse_overwriting(self, new: str, old: str | None = None) -> None:
        """Stop before a file that git ignores would be replaced by an added one.

        Args:
            new: The commit to which the work tree will move.
            old: What it holds besides ignored files; by default HEAD.

        Raises:
            ToolError: There is such a file.
        """
        old = old or self.repository.resolve("HEAD")
        if old is None:
            return
        added = self.repository.paths_between(old, new, added=True)
        above = {str(up) for path in added for up in PurePosixPath(path).parents}
        there = sorted(
            {path for path in added if self._holds_strangers(path)}
            | {path for path in above if self._is_strange_file(path, old)}
        )
        if there:
            raise ToolError(
                Outcome.TREE_EDITED,
                f"{self.project.tree / there[0]} is in the way of a file that the "
                "series or an overlay adds",
                ("Move it away, then run the command again",),
                tuple(there[:10]),
            )

    def _holds_strangers(self, path: str) -> bool:
        """Whether a path is a file, or a folder with files that git does not track."""
        file = self.project.tree / path
        if not file.is_dir() or file.is_symlink():
            return os.path.lexists(file)
        listed = self.repository.git("ls-files", "-z", "--others", "--", path)
        return bool(listed.stdout)

    def _is_strange_file(self, path: str, old: str) -> bool:
        """Whether a path is a file, though a commit has no such file."""
        file = self.project.tree / path
        is_file = os.path.lexists(file) and (file.is_symlink() or not file.is_dir())
        return is_file and not self.repository.entry(old, path)

    def refuse_strangers(self) -> None:
        """Stop at a tree folder that these tools did not make.

        Raises:
            ToolError: There is such a folder, or a file in its place.
        """
        folder = self.project.tree
        found = [path for path in folder.iterdir()] if folder.is_dir() else []
        if (
            folder.exists()
            and (found or not folder.is_dir())
            and found != [self.repository.git_dir]
        ):
            raise ToolError(
                Outcome.TREE_EDITED,
                f"{folder} was not made by these tools",
                ("Move it away, then run the command again",),
            )
