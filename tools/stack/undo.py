"""One step back: what the last change replaced is put in place again."""

from dataclasses import replace

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.source.fetch import Sdist
from tools.tree import underway
from tools.tree.compose import compose, import_base
from tools.tree.inputs import Inputs, copy_inputs
from tools.tree.scratch import scratch
from tools.tree.state import State
from tools.tree.transaction import Changes, File, Transaction, digest, write
from tools.tree.tree import Tree

# It is made anew of what comes back, together with what else was changed since.
_LOCK = "upstream/tree.lock"
_UNDO = "undo of "


def undo(tree: Tree) -> tuple[Transaction, Transaction]:
    """Take the last change back: of the series, the overlays, the pin.

    An undo is a change too, so the next one does again what was undone. Files that
    were taken back by hand already, say by git, are left as they are.

    Args:
        tree: The tree; the caller holds the project's lock.

    Returns:
        What was taken back, and the change that did it.

    Raises:
        ToolError: There is nothing to take back, a file was changed since, the tree
            has edits, or a rebase is under way. Nothing has changed.
    """
    project = tree.project
    tree.recover()
    underway.refuse(project)
    last = Transaction.last(project)
    if last is None:
        raise ToolError(
            Outcome.USAGE,
            "there is nothing to take back",
            (f"Copies of what was replaced would be in {project.dropped}",),
        )
    _refuse_changed(last)
    tree.refuse_edits()
    tree.repository.init()
    changes = _before(last)
    new = _placed(tree, _composed(project, changes), last.was)
    tree.refuse_overwriting(new.here)
    lock = File(f"{tree.repository.tree_of(new.commit)}\n".encode())
    again = last.title.startswith(_UNDO)
    title = last.title.removeprefix(_UNDO) if again else f"{_UNDO}{last.title}"
    return last, tree.change(title, {**changes, _LOCK: lock}, new)


def _before(last: Transaction) -> Changes:
    """Return what takes a change back, from its copies."""
    assert last.kept
    return {
        name: File.read(last.kept / name) if before else None
        for name, before in last.before.items()
        if name != _LOCK
    }


def _composed(project: Project, changes: Changes) -> State:
    """Return the state that the checkout would make with some changes."""
    with scratch(project) as folder:
        copy_inputs(project.root, folder)
        write(changes, folder)
        shadow = Project(folder, project.build, project.cache)
        inputs = Inputs.read(shadow, relock=True)
        import_base(project, inputs.pin, Sdist(project.cache))
        return compose(project, inputs)


def _placed(tree: Tree, new: State, was: State | None) -> State:
    """Return a state with the work tree at the patch at which it stood before."""
    if was and was.position in tree.commits(new):
        return replace(new, position=was.position)
    return new


def _refuse_changed(last: Transaction) -> None:
    """Stop if a file is neither as the change left it nor as it was before.

    Raises:
        ToolError: One is, or a copy is missing.
    """
    root = last.project.root
    found = {name: digest(root / name) for name in last.after if name != _LOCK}
    changed = [
        name
        for name, now in found.items()
        if now not in (last.before[name], last.after[name])
    ]
    if changed:
        raise ToolError(
            Outcome.OUT_OF_SYNC,
            f"{changed[0]} was changed since: {last.title}",
            (f"Take it back by hand; what was replaced is in {last.kept}",),
            tuple(changed),
        )
    assert last.kept
    copies = {name: digest(last.kept / name) for name in found if last.before[name]}
    damaged = [name for name in copies if copies[name] != last.before[name]]
    if damaged:
        raise ToolError(
            Outcome.OUT_OF_SYNC,
            f"the copy of {damaged[0]} in {last.kept} is missing or was changed",
            ("Take the change back by hand, or by git",),
            tuple(damaged),
        )
