"""What a killed run began, completed by the next one."""

from tools.base import console
from tools.tree import scratch
from tools.tree.edits import Snapshot
from tools.tree.shield import shield
from tools.tree.state import State
from tools.tree.transaction import Transaction
from tools.tree.worktree import WorkTree


def recover(tree: WorkTree) -> None:
    """Complete a change of files or a move of the work tree that was killed.

    Raises:
        ToolError: The tree folder was not made by these tools.
    """
    scratch.remove_left(tree.project)
    if tree.repository.exists:
        _remove_left_locks(tree)
        shield(tree.repository)
    if pending := Transaction.pending(tree.project):
        console.note("An earlier run was interrupted; completing it …")
        carry_out(tree, pending)
    _complete_move(tree)


def carry_out(tree: WorkTree, transaction: Transaction) -> None:
    """Change the checkout's files, then move the work tree to what they make."""
    new = transaction.state
    transaction.carry_out()
    _keep_edits(tree, new, transaction.title)
    new.write(tree.state_file)
    transaction.finish()
    tree.move(new)


def _complete_move(tree: WorkTree) -> None:
    """Finish a move of the work tree."""
    state = tree.state if tree.repository.exists else None
    if state is None:
        tree.refuse_strangers()
    elif state.moving:
        console.note("An earlier run was interrupted; completing it …")
        _keep_edits(tree, state, "interrupted move")
        tree.move(state)


def _keep_edits(tree: WorkTree, new: State, command: str) -> None:
    """Copy files that are neither as before a move to `new` nor as after it.

    They were edited since, or were being written when the run was killed.
    """
    head = tree.repository.resolve("HEAD")
    if head is None:
        return
    snapshot = Snapshot.take(tree.repository, command)
    edited = snapshot.paths_unlike(tree.repository, new.here)
    edited &= snapshot.paths_unlike(tree.repository, head)
    if edited:
        copy = snapshot.keep(tree.project, new.here)
        console.note(f"{len(edited)} files were half-way or edited: see {copy}")


def _remove_left_locks(tree: WorkTree) -> None:
    """Remove git's lock files of a killed run; no child of it still runs.

    Children hold the project's lock as long as they live. A lock of the index
    outside a move is left alone: it is the user's own git.
    """
    git_dir = tree.repository.git_dir
    left = [git_dir / "config.lock", *(git_dir / "refs/tagma").rglob("*.lock")]
    if (state := tree.state) is None or state.moving:
        left += [git_dir / "index.lock", git_dir / "HEAD.lock"]
        left += (git_dir / "refs/heads").rglob("*.lock")
    for path in left:
        path.unlink(missing_ok=True)
