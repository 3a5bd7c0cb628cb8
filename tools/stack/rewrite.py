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
from tools.tree.export import diff_between
from tools.tree.folder import files_of
from tools.tree.inputs import Inputs, copy_inputs
from tools.tree.patch import Patch
from tools.tree.placed import PlacedPatch
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
    placed: Sequence[PlacedPatch],
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
        placed: The patches in their new order.
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
    new, changes = _composed(tree, placed, overlays or {}, mend)
    here = tree.commits(new)[position]
    tree.refuse_overwriting(here, work_tree)
    state = replace(new, position="" if here == new.commit else here)
    made = tree.change(title, changes, state)
    return Rewritten(tuple(sorted(made.after)), str(made.kept or ""))


def _composed(
    tree: Tree, placed: Sequence[PlacedPatch], overlays: Changes, mend: tuple[str, ...]
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
        trees = _replay(repository, repository.tree_of(laid), placed, mend)
        patches = [
            replace(one.patch, diff=diff_between(repository, before, after))
            for one, before, after in zip(placed, trees, trees[1:], strict=False)
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
    repository: Repository,
    base: str,
    placed: Sequence[PlacedPatch],
    mend: tuple[str, ...],
) -> list[str]:
    """Return the tree ids of the base and after each patch."""
    trees = [base]
    for one in placed:
        tree = merge(repository, one, trees[-1], mend)
        if tree == trees[-1]:
            raise ToolError(
                Outcome.BAD_PATCH,
                f"{one.patch.name} would change nothing",
                (f"Drop it: python -m tools drop {one.patch.name}",),
            )
        trees.append(tree)
    return trees


def merge(
    repository: Repository, placed: PlacedPatch, onto: str, mend: tuple[str, ...]
) -> str:
    """Return the tree with a patch on top of another tree.

    Args:
        repository: The repository.
        placed: The patch.
        onto: Git tree id to make the change on.
        mend: What the user can do about a conflict.

    Raises:
        ToolError: There is a conflict.
    """
    if placed.before == onto:
        return placed.after
    merged = three_way(repository, placed.before, onto, placed.after, renames=False)
    if merged.conflicts:
        raise ToolError(
            Outcome.CONFLICT,
            f"{placed.patch.name} conflicts with the change; nothing was written",
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
