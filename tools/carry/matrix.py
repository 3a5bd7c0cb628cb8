"""Releases by patches: where the series lands, and what the overlays find there."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tools.base.git import Repository
from tools.base.project import Project
from tools.carry import resolutions
from tools.carry.identity import identified
from tools.carry.landing import Landing
from tools.carry.merge import Step, carry, solve
from tools.carry.releases import Releases
from tools.carry.uses import Change, Finding, Release, Use, collect, compare
from tools.source.fetch import Sdist
from tools.source.pin import Pin
from tools.tree import overlay
from tools.tree.compose import base_reference
from tools.tree.inputs import Inputs
from tools.tree.patch import Patch
from tools.tree.tree import Tree

WORKERS = 2


@dataclass(frozen=True)
class Cell:
    """What became of one patch on one release.

    Args:
        landing: What became of it.
        files: The files that stop it.
        details: Why, in lines for people.
    """

    landing: Landing
    files: tuple[str, ...]
    details: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether nobody need act: it lands, or upstream has it."""
        return not self.landing.stops


@dataclass(frozen=True)
class Column:
    """One release.

    Args:
        version: The release.
        cells: A cell for each patch, in order.
        findings: What became of the names that the overlays use.
        clashes: Overlay files that the release has too.
    """

    version: str
    cells: tuple[Cell, ...]
    findings: tuple[Finding, ...]
    clashes: tuple[str, ...]

    @property
    def broken(self) -> list[Finding]:
        """The uses that the release cannot satisfy."""
        return [f for f in self.findings if f.change.weight >= Change.MISFIT.weight]

    @property
    def changes(self) -> dict[str, int]:
        """How many of the used names changed, by the worst that is true of each."""
        worst: dict[str, Change] = {}
        for finding in self.findings:
            known = worst.get(finding.use.target, Change.SAME)
            worst[finding.use.target] = max(
                known, finding.change, key=lambda change: change.weight
            )
        return dict(Counter(change.value for change in worst.values()))


@dataclass(frozen=True)
class Matrix:
    """The whole table."""

    pinned: str
    patches: tuple[str, ...]
    columns: tuple[Column, ...]

    def share(self, versions: Sequence[str]) -> float:
        """Return the share of good cells in the columns of some releases."""
        cells = [
            c for col in self.columns if col.version in versions for c in col.cells
        ]
        return sum(cell.good for cell in cells) / len(cells) if cells else 0.0

    def data(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "pinned": self.pinned,
            "patches": list(self.patches),
            "releases": [
                {
                    "version": column.version,
                    "share": round(self.share([column.version]), 3),
                    "cells": [
                        {
                            "landing": cell.landing.value,
                            "files": list(cell.files),
                            "details": list(cell.details) if not cell.good else [],
                        }
                        for cell in column.cells
                    ],
                    "names": column.changes,
                    "broken": [
                        {
                            "name": finding.use.target,
                            "file": finding.use.file,
                            "change": finding.change.value,
                            "why": finding.why,
                        }
                        for finding in column.broken
                    ],
                    "clashes": list(column.clashes),
                }
                for column in self.columns
            ],
        }


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
    inputs = Inputs.read(project)
    tree.apply(Sdist(project.cache))
    state = tree.state
    assert state
    commits = tree.commits(state)[1:]
    steps = [
        Step(Patch.parse(path.name, path.read_bytes()), commit)
        for path, commit in zip(inputs.series.paths, commits, strict=True)
    ]
    pins = list(releases(tree, versions))
    uses = collect(project.root)
    stored = resolutions.read(project.patches)

    def column(pin: Pin) -> Column:
        return _column(project, tree.repository, pin, inputs.pin, steps, uses, stored)

    with ThreadPoolExecutor(WORKERS) as pool:
        columns = tuple(pool.map(column, pins))
    return Matrix(inputs.pin.version, inputs.series.names, columns)


def releases(tree: Tree, versions: Sequence[str]) -> Iterator[Pin]:
    """Import releases and record those that are new."""
    pinned = Pin.read(tree.project.pin_file)
    for version in dict.fromkeys(versions):
        known = Releases.read(tree.project.releases_file).including(pinned)
        pin = identified(tree, known, version)
        known.record(pin)
        yield pin


def _column(
    project: Project,
    repository: Repository,
    pin: Pin,
    pinned: Pin,
    steps: Sequence[Step],
    uses: list[Use],
    stored: dict[str, resolutions.Resolution],
) -> Column:
    old, new = (Release(repository, base_reference(side)) for side in (pinned, pin))
    tip, cells = pin.tree, []
    for step in steps:
        found = carry(repository, step, tip)
        landing, details = found.landing, found.details
        solved = solve(repository, found, stored) if landing.stops else None
        if solved:
            landing, tip = Landing.RESOLVED, solved[0]
        elif not landing.stops:
            tip = found.tree
        files = tuple(conflict.path for conflict in found.conflicts)
        cells.append(Cell(landing, files if landing.stops else (), details))
    listed = repository.git("ls-tree", "-r", "-z", "--name-only", pin.tree).text
    ours = {file.target for file in overlay.files(project.root)}
    clashes = tuple(sorted(ours & set(listed.split("\0"))))
    return Column(pin.version, tuple(cells), tuple(compare(uses, old, new)), clashes)


def markdown(matrix: Matrix) -> str:
    """Return the table and what stops patches, for people."""
    versions = [column.version for column in matrix.columns]
    lines = [
        "# Where the series lands",
        "",
        f"The series of {matrix.pinned}, carried to each release by three-way merges.",
        "",
        f"| patch | {' | '.join(versions)} |",
        f"| --- |{' --- |' * len(versions)}",
    ]
    for number, name in enumerate(matrix.patches):
        cells = [column.cells[number].landing.value for column in matrix.columns]
        lines.append(f"| {name.removesuffix('.patch')} | {' | '.join(cells)} |")
    shares = [f"{matrix.share([version]):.0%}" for version in versions]
    lines.append(f"| nobody need act | {' | '.join(shares)} |")
    broken = [str(len(column.broken)) for column in matrix.columns]
    lines.append(f"| uses by overlays that break | {' | '.join(broken)} |")
    lines += ["", "## What stops patches"]
    for column in matrix.columns:
        for name, cell in zip(matrix.patches, column.cells, strict=True):
            if not cell.good:
                lines += ["", f"{column.version}, {name}:", "", "```text"]
                lines += [*cell.details, "```"]
    lines += ["", "## What overlays miss", ""]
    for column in matrix.columns:
        for finding in column.broken:
            why = f": {finding.why}" if finding.why else ""
            lines.append(
                f"- {column.version}: `{finding.use.target}` ({finding.change.value}"
                f"{why}), used by {finding.use.file}"
            )
        lines += [
            f"- {column.version}: upstream has {path}, an overlay's file"
            for path in column.clashes
        ]
    return "\n".join(lines) + "\n"
