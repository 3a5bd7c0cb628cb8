"""The patched tree: a git repository made from pin, overlays and series alone.

Every commit is built in the object store with an index of its own. The work tree
moves once, at the end, so a run that fails or is killed leaves the last good tree,
or one that the next run completes.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath

from tools.base import console
from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.carry.journal import refuse_half_switched
from tools.source.pin import Pin, write_lock
from tools.source.source import Source
from tools.tree import overlay
from tools.tree.edits import Snapshot
from tools.tree.folder import file_digests
from tools.tree.hunk import check_place
from tools.tree.patch import Patch
from tools.tree.series import Series
from tools.tree.shield import shield
from tools.tree.transaction import Transaction

_SCRATCH = "scratch-"
# What git keeps in its folder while such a command waits for its user.
_OPERATIONS = {
    "rebase": ("rebase-merge", "rebase-apply"),
    "cherry-pick": ("CHERRY_PICK_HEAD", "sequencer"),
    "merge": ("MERGE_HEAD",),
}


@dataclass(frozen=True)
class State:
    """What the tree was made from; written before and after the work tree moves.

    Args:
        inputs: Digest of pin, overlays and series.
        overlays: The commit that laid the overlays.
        commit: The last commit of the series.
        moving: The work tree is on its way to `here`.
        position: Where the work tree stands in the series; "": at `commit`.
        patches: Digest of each file in patches/ that it was made from, by name.
    """

    inputs: str
    overlays: str
    commit: str
    moving: bool
    position: str = ""
    patches: dict[str, str] = field(default_factory=dict)

    @property
    def here(self) -> str:
        """The commit that the work tree belongs to."""
        return self.position or self.commit

    @classmethod
    def read(cls, path: Path) -> "State | None":
        """Return the recorded state; None if there is none."""
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ToolError(
                Outcome.TREE_EDITED,
                f"{path} is damaged, so edits in the tree cannot be told apart",
                ("Save what you need from the tree, then remove its folder",),
            ) from error

    def write(self, path: Path) -> None:
        """Record the state in one step."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)), "utf-8")
        os.replace(partial, path)


@dataclass(frozen=True)
class Inputs:
    """Everything that determines the tree."""

    pin: Pin
    overlays: tuple[overlay.OverlayFile, ...]
    series: Series

    @classmethod
    def read(
        cls, project: Project, relock: bool = False, *, series: bool = True
    ) -> "Inputs":
        """Read and check all inputs.

        Args:
            project: The project.
            relock: Ignore the present lock of the patched tree.
            series: Read the series; otherwise it is empty.

        Raises:
            ToolError: The pin or the series is broken.
        """
        return cls(
            Pin.read(project.pin_file, locked=not relock),
            tuple(overlay.files(project.root)),
            Series.read(project.patches) if series else Series(project.patches, ()),
        )

    def digest(self) -> str:
        """Return a digest that changes with any input."""
        total = hashlib.sha256(self.pin.tree.encode())
        for file in self.overlays:
            total.update(f"\0{file.target}\0{file.mode}\0".encode())
            total.update(hashlib.sha256(file.source.read_bytes()).digest())
        for path in self.series.paths:
            total.update(f"\0{path.name}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()


@dataclass(frozen=True)
class Applied:
    """The result of an apply.

    Args:
        outcome: DONE or UNCHANGED.
        commit: The tree's commit.
        tree: Its git tree id.
        patches: How many patches it has.
        dropped: The copy of edits that were dropped.
    """

    outcome: Outcome
    commit: str
    tree: str
    patches: int
    dropped: Path | None


class Tree:
    """The patched tree of a project. The caller holds the project's lock."""

    def __init__(self, project: Project, *, rebasing: bool = False):
        """Name the tree.

        Args:
            project: The project.
            rebasing: A rebase that is putting its files in place calls.
        """
        self.project = project
        self.rebasing = rebasing
        self.repository = Repository(project.tree)
        self.state_file = self.repository.git_dir / "tagma.json"

    @property
    def state(self) -> State | None:
        """The recorded state."""
        return State.read(self.state_file)

    def apply(
        self,
        source: Source,
        *,
        drop: bool = False,
        relock: bool = False,
    ) -> Applied:
        """Make the tree equal to its inputs.

        Args:
            source: Where the release comes from if it is not imported yet.
            drop: Drop edits in the tree, keeping a copy, instead of stopping.
            relock: Accept the resulting tree as the new lock.

        Raises:
            ToolError: An input is broken or the tree has edits. The tree is then
                as it was, but for edits that `drop` moved out.
        """
        self.recover()
        inputs = Inputs.read(self.project, relock)
        digest = inputs.digest()
        dropped = self._drop_edits() if drop else None
        self.refuse_edits()
        state = self.state
        if state and state.inputs == digest and not relock:
            tree = self.repository.tree_of(state.commit)
            self._check_lock(inputs.pin, tree)
            outcome = Outcome.DONE if dropped else Outcome.UNCHANGED
            if state.position:
                console.note("The patches that were popped are applied again")
                self.go(state.commit)
                outcome = Outcome.DONE
            return Applied(
                outcome, state.commit, tree, len(inputs.series.names), dropped
            )
        self.repository.init()
        shield(self.repository)
        self.import_base(inputs.pin, source)
        new = self.build(inputs)
        tree = self.repository.tree_of(new.commit)
        self.refuse_overwriting(new.commit)
        if relock:
            write_lock(self.project.pin_file, tree)
        else:
            self._check_lock(inputs.pin, tree)
        self._move(new)
        return Applied(
            Outcome.DONE, new.commit, tree, len(inputs.series.names), dropped
        )

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
        if not commits and not paths:
            return
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
        raise ToolError(
            Outcome.TREE_EDITED, f"{self.project.tree} has {what}", steps, shown
        )

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
        added = sorted(self.repository.paths_between(old, new, added=True))
        there = [path for path in added if (self.project.tree / path).exists()]
        if there:
            raise ToolError(
                Outcome.TREE_EDITED,
                f"{self.project.tree / there[0]} is in the way of a file that the "
                "series or an overlay adds",
                ("Move it away, then run the command again",),
                tuple(there[:10]),
            )

    def require_current(self, *, edits: bool = False, popped: bool = False) -> State:
        """Return the state; stop unless the tree is what its inputs make.

        Args:
            edits: Accept edits in the tree.
            popped: Accept a tree without the last patches.

        Raises:
            ToolError: There is no tree, it is older than its inputs, edited, or
                patches are popped.
        """
        state = self.state
        step = ("Make it: python -m tools apply (or: make apply)",)
        if state is None or state.moving:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                f"there is no patched tree in {self.project.tree}",
                step,
            )
        if not edits:
            self.refuse_edits()
        if state.inputs != Inputs.read(self.project).digest():
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                f"{self.project.tree} is older than patches/, overlays or pin",
                self._bring_up_to_date(),
            )
        if state.position and not popped:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                f"patches are popped from {self.project.tree}",
                ("Push them: python -m tools push --all",),
            )
        return state

    def _bring_up_to_date(self) -> tuple[str, ...]:
        """Return how to make the tree anew and keep the edits in it."""
        apply = "python -m tools apply --lock"
        if not self.repository.changed_paths():
            return (f"Make it anew: {apply}",)
        git = f"git -C {self.project.tree} stash"
        return (
            f"Make it anew, with the edits aside: {git} --include-untracked",
            f"then: {apply} && {git} pop",
        )

    def go(self, commit: str) -> None:
        """Move the work tree, which has no edits, to a commit of the series.

        Raises:
            ToolError: A file that git ignores is in the way.
        """
        state = self.state
        assert state
        self.refuse_overwriting(commit)
        position = "" if commit == state.commit else commit
        self._move(replace(state, position=position))

    def commits(self, state: State) -> tuple[str, ...]:
        """Return the commits of a state: the overlays', then one for each patch."""
        span = f"{state.overlays}..{state.commit}"
        listed = self.repository.git("rev-list", "--reverse", span)
        return (state.overlays, *listed.text.split())

    def recover(self) -> None:
        """Complete what a killed run began; each command that writes begins so.

        Raises:
            ToolError: A killed rebase has to be finished or undone first.
        """
        if not self.rebasing:
            refuse_half_switched(self.project)
        self._remove_scratch()
        if self.repository.exists:
            shield(self.repository)
        if pending := Transaction.pending(self.project):
            self._remove_left_locks()
            console.note("An earlier run was interrupted; completing it …")
            self.carry_out(pending)
        self._complete_move()

    def carry_out(self, transaction: Transaction) -> None:
        """Change patches and overlays, then move the work tree to what they make."""
        new = State(**transaction.state)
        transaction.carry_out()
        head = self.repository.resolve("HEAD")
        assert head
        self._keep_edits_since(head, new)
        new.write(self.state_file)
        transaction.finish()
        self._move(new)

    def _remove_scratch(self) -> None:
        for left in self.project.build.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for the time of the block; a killed run's is removed later."""
        with tempfile.TemporaryDirectory(
            prefix=_SCRATCH, dir=self.project.build
        ) as path:
            yield Path(path)

    def _complete_move(self) -> None:
        """Finish a move of the work tree that a killed run began."""
        if not self.repository.exists:
            self._refuse_strangers()
            return
        self._remove_left_locks()
        state = self.state
        if state is None:
            self._refuse_strangers()
            return
        if not state.moving:
            return
        console.note("An earlier run was interrupted; completing it …")
        if head := self.repository.resolve("HEAD"):
            self._keep_edits_since(head, state)
        self._move(state)

    def _keep_edits_since(self, head: str, state: State) -> None:
        """Copy files that are neither as before the killed move nor as after it.

        They were edited since, or were being written when the run was killed.
        """
        snapshot = Snapshot.take(self.repository)
        edited = snapshot.paths_unlike(self.repository, state.here)
        edited &= snapshot.paths_unlike(self.repository, head)
        if edited:
            copy = snapshot.keep(self.project, state.here)
            console.note(f"{len(edited)} files were half-way or edited: see {copy}")

    def _refuse_strangers(self) -> None:
        """Refuse a tree folder that these tools did not make."""
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

    def _remove_left_locks(self) -> None:
        """Remove git's lock files of a killed run; no child of it still runs.

        Children hold the project's lock as long as they live. A lock of the index
        outside a move is left alone: it is the user's own git.
        """
        git_dir = self.repository.git_dir
        left = [git_dir / "config.lock", *(git_dir / "refs/tagma").rglob("*.lock")]
        if (state := self.state) is None or state.moving:
            left += [git_dir / "index.lock", git_dir / "HEAD.lock"]
            left += (git_dir / "refs/heads").rglob("*.lock")
        for path in left:
            path.unlink(missing_ok=True)

    def _drop_edits(self) -> Path | None:
        """Move edits out of the tree and return their copy, if there were any."""
        state = self.state
        if state is None:
            return None
        snapshot = Snapshot.take(self.repository)
        for name in _OPERATIONS:
            self.repository.git(name, "--quit", check=False)
        if snapshot.commit == state.here:
            return None
        copy = snapshot.keep(self.project, state.here)
        console.note(f"dropped edits are kept in {copy}")
        self._move(state)
        self.repository.git("clean", "-fdq")
        return copy

    def import_base(self, pin: Pin, source: Source) -> str:
        """Return the commit of the pinned release, importing it if need be.

        Raises:
            ToolError: The source cannot be had or is not the pinned release.
        """
        repository = self.repository
        reference = base_reference(pin)
        if base := repository.resolve(reference):
            return base
        with self.scratch() as scratch:
            tree = source.import_into(repository, pin, scratch)
        if tree != pin.tree:
            raise ToolError(
                Outcome.WRONG_TREE,
                f"{source.name} does not give the pinned tree of {pin.version}",
                ("Use the pinned sdist (the default source)",),
                (f"expected tree {pin.tree}", f"found    tree {tree}"),
            )
        base = repository.commit_tree(tree, f"Import vllm {pin.version}\n", None)
        repository.git("update-ref", reference, base)
        return base

    def lay_overlays(self, inputs: Inputs) -> str:
        """Return a commit of the overlays on top of the base, which is imported.

        Raises:
            ToolError: An overlay would replace a file of upstream's.
        """
        base = self.repository.git(
            "rev-parse", "--verify", base_reference(inputs.pin)
        ).text
        with self.scratch() as scratch:
            index = scratch / "index"
            self.repository.git("read-tree", base, index=index)
            self._lay_overlays(inputs, base, index)
            return self._commit_index(index, "Lay the overlays\n", base)

    def build(self, inputs: Inputs) -> State:
        """Build all commits on top of the base; nothing but objects is written.

        Raises:
            ToolError: An input is broken.
        """
        commit = overlays = self.lay_overlays(inputs)
        with self.scratch() as scratch:
            index = scratch / "index"
            self.repository.git("read-tree", overlays, index=index)
            paths = inputs.series.paths
            with console.step("apply the series", len(paths)) as step:
                for path in paths:
                    commit = self._apply_patch(path, commit, index)
                    step.advance(1)
        patches = file_digests(inputs.series.folder)
        return State(inputs.digest(), overlays, commit, True, patches=patches)

    def _lay_overlays(self, inputs: Inputs, base: str, index: Path) -> None:
        overlay.refuse_conflicts(inputs.overlays)
        repository = self.repository
        listed = repository.git("ls-tree", "-r", "-z", "--name-only", base).text
        upstream = set(listed.split("\0"))
        for file in inputs.overlays:
            if file.target in upstream or upstream & set(_parents(file.target)):
                raise ToolError(
                    Outcome.BAD_OVERLAY,
                    f"{file.source} would replace upstream's {file.target}",
                    ("Rename the overlay file, or change upstream's file by a patch",),
                )
        paths = "".join(f"{file.source}\n" for file in inputs.overlays)
        blobs = repository.git(
            "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=paths.encode()
        ).text.split()
        entries = "".join(
            f"{file.mode} {blob}\t{file.target}\0"
            for file, blob in zip(inputs.overlays, blobs, strict=True)
        )
        repository.git(
            "update-index", "-z", "--index-info", stdin=entries.encode(), index=index
        )

    def _apply_patch(self, path: Path, parent: str, index: Path) -> str:
        patch = Patch.parse(path.name, path.read_bytes())
        for hunk in patch.hunks():
            blob = self.repository.git(
                "cat-file", "blob", f":{hunk.path}", index=index, check=False
            )
            check_place(path.name, hunk, blob.stdout if blob.status == 0 else None)
        done = self.repository.git(
            "apply",
            "--cached",
            "--whitespace=nowarn",
            "-",
            stdin=patch.diff,
            index=index,
            check=False,
        )
        if done.status != 0:
            raise ToolError(
                Outcome.PATCH_FAILED,
                f"{path.name} does not apply",
                ("Mend the patch, or restore the file that it was made for",),
                tuple(done.error_text.splitlines()),
            )
        commit = self._commit_index(
            index,
            patch.message,
            parent,
            patch.fields["From"],
            f"{patch.fields['Last-Update']}T00:00:00+0000",
        )
        if self.repository.tree_of(commit) == self.repository.tree_of(parent):
            raise ToolError(
                Outcome.BAD_PATCH,
                f"{path.name} changes nothing",
                ("Remove it from the series",),
            )
        return commit

    def _commit_index(
        self, index: Path, message: str, parent: str, *author_and_date: str
    ) -> str:
        tree = self.repository.git("write-tree", index=index).text
        return self.repository.commit_tree(tree, message, parent, *author_and_date)

    def _check_lock(self, pin: Pin, tree: str) -> None:
        if tree != pin.patched_tree:
            raise ToolError(
                Outcome.WRONG_TREE,
                "the patched tree is not the one that upstream/tree.lock holds",
                (
                    "If you changed overlays or patches: python -m tools apply --lock",
                    "Otherwise restore them: git status; git diff",
                ),
                (
                    f"expected tree {pin.patched_tree or '(none)'}",
                    f"found    tree {tree}",
                ),
            )

    def _move(self, state: State) -> None:
        """Move the work tree to the state's commit; a killed run repeats it."""
        replace(state, moving=True).write(self.state_file)
        self.repository.git("reset", "--hard", "--quiet", state.here)
        replace(state, moving=False).write(self.state_file)


def base_reference(pin: Pin) -> str:
    """Return the reference of a release that has been imported."""
    return f"refs/tagma/base/{pin.tree}"


def _parents(path: str) -> list[str]:
    """Return the folders above a path of the tree."""
    return [str(parent) for parent in PurePosixPath(path).parents]
