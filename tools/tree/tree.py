"""The patched tree: a git repository made from pin, overlays and series alone.

Every commit is made in the object store. The work tree moves once, at the end, so a
run that fails or is killed leaves the last good tree, or one that the next run
completes.
"""

from dataclasses import dataclass
from pathlib import Path

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.source.fetch import ReleaseSource
from tools.source.pin import Pin, write_lock
from tools.tree import recovery, underway
from tools.tree.compose import compose, import_base
from tools.tree.inputs import Inputs
from tools.tree.shield import shield
from tools.tree.state import State
from tools.tree.transaction import Changes, Transaction
from tools.tree.worktree import WorkTree


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


class Tree(WorkTree):
    """The patched tree of a project: a work tree that follows its inputs."""

    def apply(
        self,
        source: ReleaseSource,
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
            ToolError: An input is broken, the tree has edits, or inputs changed in
                the middle of a rebase. The tree is then as it was, but for edits that
                `drop` moved out.
        """
        self.recover()
        inputs = Inputs.read(self.project, relock)
        dropped = self.drop_edits() if drop else None
        self.refuse_edits()
        state = self.state
        if state and state.inputs == inputs.digest() and not relock:
            return self._applied_before(state, inputs, dropped)
        underway.refuse(self.project)
        self.repository.init()
        shield(self.repository)
        import_base(self.project, inputs.pin, source)
        new = compose(self.project, inputs)
        tree = self.repository.tree_of(new.commit)
        self.refuse_overwriting(new.commit)
        if relock:
            write_lock(self.project.pin_file, tree)
        else:
            self._check_lock(inputs.pin, tree)
        self.move(new)
        total = len(inputs.series.names)
        return Applied(Outcome.DONE, new.commit, tree, total, dropped)

    def _applied_before(
        self, state: State, inputs: Inputs, dropped: Path | None
    ) -> Applied:
        """Return a tree whose inputs are as they were; push what was popped."""
        tree = self.repository.tree_of(state.commit)
        self._check_lock(inputs.pin, tree)
        outcome = Outcome.DONE if dropped else Outcome.UNCHANGED
        if state.position:
            console.note("The patches that were popped are applied again")
            self.go(state.commit)
            outcome = Outcome.DONE
        return Applied(outcome, state.commit, tree, len(inputs.series.names), dropped)

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

    def recover(self) -> None:
        """Complete what a killed run began; each command that writes begins so.

        Raises:
            ToolError: The tree folder was not made by these tools.
        """
        recovery.recover(self)

    def change(
        self, title: str, changes: Changes, new: State, spent: tuple[str, ...] = ()
    ) -> Transaction:
        """Change files of the checkout, then move the work tree to what they make.

        All of it happens, or nothing: each command that changes the series or the pin
        ends here.

        Args:
            title: The command, for people.
            changes: What files will hold.
            new: The state that these inputs make.
            spent: Folders of the build folder to remove at the end.

        Returns:
            What was changed, and where copies of it are.

        Raises:
            ToolError: A rebase is under way, which this change does not end.
        """
        if underway.folder(self.project).name not in spent:
            underway.refuse(self.project)
        made = Transaction.stage(self.project, title, changes, new, spent)
        recovery.carry_out(self, made)
        return made

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
