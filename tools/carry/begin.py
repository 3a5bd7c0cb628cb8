"""The beginning of a rebase: the base to go to, and a journal with nothing done."""

from dataclasses import replace

from tools.carry.identity import another
from tools.carry.journal import Journal
from tools.source.fetch import GitRemote, Sdist
from tools.tree.compose import lay_overlays
from tools.tree.inputs import Inputs
from tools.tree.tree import Tree


def begin(
    tree: Tree, version: str, source: Sdist | GitRemote | None, offer: bool
) -> Journal:
    """Bring the tree up to date, import the base and lay the overlays on it.

    Args:
        tree: The tree.
        version: The release to go to.
        source: Where it comes from, as `another` takes it.
        offer: Use stored resolutions.

    Raises:
        ToolError: The tree has edits, the base cannot be had, the series is on it
            already, or an overlay would replace a file of it.
    """
    tree.apply(Sdist(tree.project.cache))
    inputs, state = Inputs.read(tree.project), tree.state
    assert state
    pin = another(tree, inputs.pin, version, source)
    commits = tree.commits(state)[1:]
    return Journal(
        inputs.digest(),
        inputs.pin,
        pin,
        tuple(zip(inputs.series.names, commits, strict=True)),
        lay_overlays(tree.project, replace(inputs, pin=pin)),
        offer=offer,
    )
