"""Changes of the series: replayed by three-way merge, proven, then written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.tree import underway
from tools.tree.compose import compose, lay_overlays
from tools.tree.export import Step, diff_between
from tools.tree.folder import files_of
from tools.tree.inputs import Inputs, copy_inputs
from tools.tree.patch import Patch
from tools.tree.scratch import scratch
from tools.tree.state import State
from tools.tree.threeway import three_way
from tools.tree.transaction import Changes, File, write
from tools.tree.tree import Tree


@dataclass(frozen=True)
class Rewritten:
    """The result of a rewrite.

    Args:
        changed: The files of the checkout that were written or removed.
        kept: The folder with copies of what was replaced or removed; "": nothing
            was.
    """

    changed: tuple[str, ...]
    kept: str

    @property
    def outcome(self) -> Outcome:
        """DONE or UNCHANGED."""
        return Outcome.DONE if self.changed else Outcome.UNCHANGED

    @property
    def details(self) -> tuple[str, ...]:
        """Lines for people."""
        kept = (f"what they replace is kept in {self.kept}",) if self.kept else ()
        return (*self.changed, *kept)


def rewrite(
    tree: Tree,
    title: str,
    steps: Sequence[Step],
    position: int,
    overlays: Changes | None = None,
    work_tree: str | None = None,
    mend: tuple[str, ...] = (),
) -> Rewritten:
    """Replace the series, in patches/ and in the tree, as a whole.

    The patches are replayed over the overlays as they are now, exported to a folder
    of their own, applied from there and compared. Nothing else is written before
    that; a run that is killed after it is completed by the next one.

    Args:
        tree: The tree; the caller holds the project's lock.
        title: The command and the patch that it is about, for people.
        steps: The patches in their new order.
        position: How many of them the work tree will have.
        overlays: Changes of overlay files in their source folders.
        work_tree: A commit of what the work tree holds now; by default HEAD.
        mend: What the user can do about a conflict.

    Raises:
        ToolError: A patch conflicts or would change nothing, or a rebase is under
            way. Nothing has changed.
    """
    project = tree.project
    underway.refuse(project)
    new, changes = _composed(tree, steps, overlays or {}, mend)
    here = tree.commits(new)[position]
    tree.refuse_overwriting(here, work_tree)
    state = replace(new, position="" if here == new.commit else here)
    made = tree.change(title, changes, state)
    return Rewritten(tuple(sorted(made.after)), str(made.kept or ""))


def _composed(
    tree: Tree, steps: Sequence[Step], overlays: Changes, mend: tuple[str, ...]
) -> tuple[State, Changes]:
    """Replay patches, and prove that their files give the same trees.

    Returns:
        The state that they make, and what changes in the checkout.
    """
    project, repository = tree.project, tree.repository
    with scratch(project) as folder:
        copy_inputs(project.root, folder)
        shadow = Project(folder, project.build, project.cache)
        write(overlays, folder)
        # The present patches may be broken; they are about to be replaced.
        laid = lay_overlays(project, Inputs.read(shadow, relock=True, series=False))
        trees = _replay(repository, repository.tree_of(laid), steps, mend)
        patches = [
            replace(step.patch, diff=diff_between(repository, before, after))
            for step, before, after in zip(steps, trees, trees[1:], strict=False)
        ]
        series = _series_changes(project.patches, patches)
        write(series, folder)
        new = compose(project, Inputs.read(shadow, relock=True))
    if list(map(repository.tree_of, tree.commits(new))) != trees:
        raise ToolError(
            Outcome.WRONG_TREE,
            "the exported patches do not give the tree's own files",
            (f"Compare: git -C {project.tree} diff {new.commit} {trees[-1]}",),
        )
    lock = {"upstream/tree.lock": File(f"{trees[-1]}\n".encode())}
    return new, {**series, **overlays, **lock}


def _replay(
    repository: Repository, base: str, steps: Sequence[Step], mend: tuple[str, ...]
) -> list[str]:
    """Return the tree ids of the base and after each step."""
    trees = [base]
    for step in steps:
        tree = merge(repository, step, trees[-1], mend)
        if tree == trees[-1]:
            raise ToolError(
                Outcome.BAD_PATCH,
                f"{step.patch.name} would change nothing",
                (f"Drop it: python -m tools drop {step.patch.name}",),
            )
        trees.append(tree)
    return trees


def merge(repository: Repository, step: Step, onto: str, mend: tuple[str, ...]) -> str:
    """Return the tree with a step's change on top of another tree.

    Args:
        repository: The repository.
        step: The change.
        onto: Git tree id to make the change on.
        mend: What the user can do about a conflict.

    Raises:
        ToolError: There is a conflict.
    """
    if step.before == onto:
        return step.after
    merged = three_way(repository, step.before, onto, step.after, renames=False)
    if merged.conflicts:
        raise ToolError(
            Outcome.CONFLICT,
            f"{step.patch.name} conflicts with the change; nothing was written",
            mend,
            tuple(f"conflict in {conflict.name}" for conflict in merged.conflicts),
        )
    return merged.tree


def _series_changes(folder: Path, patches: Sequence[Patch]) -> Changes:
    """Return what makes a patch folder hold these patches."""
    wanted = files_of(folder, patches)
    present = {path.name for path in folder.glob("*.patch")}
    changes: Mapping[str, File | None] = {
        name: File(wanted[name]) if name in wanted else None
        for name in (*wanted, *sorted(present - set(wanted)))
    }
    return {f"{folder.name}/{name}": file for name, file in changes.items()}
