"""The series, carried to several releases at once, to see where it lands."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tools.base.project import Project
from tools.carry import resolutions
from tools.carry.definitions import Definitions
from tools.carry.identity import identified
from tools.carry.landing import Landing
from tools.carry.matrix import Cell, Column, Matrix
from tools.carry.merge import carry, solve
from tools.carry.name_drift import compare
from tools.carry.releases import Releases
from tools.carry.uses import Use, collect
from tools.source.fetch import Sdist
from tools.source.pin import Pin
from tools.tree import overlay
from tools.tree.compose import base_reference, lay_overlays
from tools.tree.inputs import Inputs
from tools.tree.patch import Patch
from tools.tree.placed import PlacedPatch
from tools.tree.tree import Tree

WORKERS = 2


def measure(project: Project, versions: Sequence[str]) -> Matrix:
    """Carry the series to each release. The caller holds the project's lock.

    Nothing but objects is written, so releases are looked at side by side.

    Args:
        project: The project.
        versions: The releases, which may include the pinned one.

    Raises:
        ToolError: A release cannot be had, or the tree has edits.
    """
    tree = Tree(project)
    tree.apply(Sdist(project.cache))
    inputs = Inputs.read(project)
    survey = _Survey.of(tree, inputs)
    pins = list(releases(tree, versions))
    with ThreadPoolExecutor(WORKERS) as pool:
        columns = tuple(pool.map(survey.column, pins))
    return Matrix(inputs.pin.version, inputs.series.names, columns)


def releases(tree: Tree, versions: Sequence[str]) -> Iterator[Pin]:
    """Import releases and record those that are new."""
    pinned = Pin.read(tree.project.pin_file)
    for version in dict.fromkeys(versions):
        known = Releases.read(tree.project.releases_file).including(pinned)
        pin = identified(tree, known, version)
        known.record(pin)
        yield pin


@dataclass(frozen=True)
class _Survey:
    """What is carried to each release.

    Args:
        tree: The tree, whose repository has everything.
        inputs: The pinned release, the overlays and the series.
        placed: The patches of the series.
        uses: What the overlays use of upstream.
        stored: The stored resolutions.
    """

    tree: Tree
    inputs: Inputs
    placed: tuple[PlacedPatch, ...]
    uses: list[Use]
    stored: dict[str, resolutions.Resolution]

    @classmethod
    def of(cls, tree: Tree, inputs: Inputs) -> "_Survey":
        """Read it from a tree that its inputs have made."""
        state, project = tree.state, tree.project
        assert state
        pairs = zip(inputs.series.paths, tree.commits(state)[1:], strict=True)
        parsed = [(Patch.parse(p.name, p.read_bytes()), commit) for p, commit in pairs]
        placed = tuple(PlacedPatch.of_commit(tree.repository, *one) for one in parsed)
        stored = resolutions.read(project.patches)
        return cls(tree, inputs, placed, collect(project.root), stored)

    def column(self, pin: Pin) -> Column:
        """Return where the series lands on one release, as a rebase would tell."""
        repository = self.tree.repository
        replaced = overlay.replaced(
            (file.target for file in self.inputs.overlays),
            repository.paths(base_reference(pin)),
        )
        laid = [f for f in self.inputs.overlays if f.target not in replaced]
        inputs = replace(self.inputs, pin=pin, overlays=tuple(laid))
        tip = repository.tree_of(lay_overlays(self.tree.project, inputs))
        cells = []
        for patch in self.placed:
            cell, tip = self._cell(patch, tip)
            cells.append(cell)
        sides = (self.inputs.pin, pin)
        old, new = (Definitions(repository, base_reference(side)) for side in sides)
        names = tuple(compare(self.uses, old, new))
        return Column(pin.version, tuple(cells), names, replaced)

    def _cell(self, patch: PlacedPatch, tip: str) -> tuple[Cell, str]:
        """Return what becomes of a patch, and the tree that the next one meets."""
        found = carry(self.tree.repository, patch, tip)
        if not found.landing.stops:
            return Cell(found.landing, (), found.details), found.tree
        if solved := solve(self.tree.repository, found, self.stored):
            return Cell(Landing.RESOLVED, (), found.details), solved[0]
        files = tuple(conflict.path for conflict in found.conflicts)
        return Cell(found.landing, files, found.details), tip
