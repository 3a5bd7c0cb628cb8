"""The pin, moved to another base on which the series stands as it is."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tools.base import atomic
from tools.base.project import Project
from tools.carry.identity import identified
from tools.carry.landing import Landing
from tools.carry.releases import Releases
from tools.carry.survey import measure
from tools.carry.wheels import with_wheels
from tools.source.fetch import GitRemote, Sdist
from tools.source.pin import Pin
from tools.tree import underway
from tools.tree.compose import compose
from tools.tree.inputs import Inputs
from tools.tree.transaction import File
from tools.tree.tree import Tree


@dataclass(frozen=True)
class Pinned:
    """What became of the pin.

    Args:
        old: The pin as it was.
        new: The base, with its hashes and wheels; it is recorded in any case.
        obstacles: Why the pin stays, in lines for people; empty: it moved.
    """

    old: Pin
    new: Pin
    obstacles: tuple[str, ...] = ()


def pin(
    project: Project, version: str, source: Sdist | GitRemote | None = None
) -> Pinned:
    """Identify and record a base, and pin it if the series stands on it as it is.

    Anything else is a rebase, which rewrites patches. The caller holds the lock.

    Args:
        project: The project.
        version: The base's name; that of the pinned one renews its wheels; "" takes
            the source's own.
        source: Where it comes from, as `identified` takes it.

    Raises:
        ToolError: The base cannot be had, the tree has edits that would be lost, or a
            rebase is under way.
    """
    tree = Tree(project)
    tree.recover()
    underway.refuse(project)
    tree.repository.init()
    old = Pin.read(project.pin_file)
    known = Releases.read(project.releases_file).including(old)
    new = with_wheels(identified(tree, known, version, source), known)
    known.record(new)
    if new.tree == old.tree:
        new = replace(new, patched_tree=old.patched_tree)
        atomic.write(project.pin_file, _pin_text(project, new))
        return Pinned(old, new)
    obstacles = tuple(_obstacles(project, new.version))
    if not obstacles:
        _switch(tree, new)
    return Pinned(old, new, obstacles)


def _obstacles(project: Project, version: str) -> Iterator[str]:
    """Say what of the series does not stand on a release as it is."""
    table = measure(project, [version])
    (column,) = table.columns
    for path in column.replaced:
        yield f"an overlay would replace upstream's {path}"
    for name, cell in zip(table.patches, column.cells, strict=True):
        if cell.landing is not Landing.CLEAN:
            yield f"{cell.landing.value:9} {name}"


def _switch(tree: Tree, new: Pin) -> None:
    """Move pin, lock and tree, all or none."""
    inputs = replace(Inputs.read(tree.project), pin=new)
    state = compose(tree.project, inputs)
    tree.refuse_overwriting(state.commit)
    lock = tree.repository.tree_of(state.commit)
    changes = {
        "upstream/pin.toml": File(_pin_text(tree.project, new)),
        "upstream/tree.lock": File(f"{lock}\n".encode()),
    }
    tree.change(f"pin {new.version}", changes, state)


def _pin_text(project: Project, new: Pin) -> bytes:
    return new.to_toml(project.pin_file.read_text("utf-8")).encode()
