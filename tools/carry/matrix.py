"""Releases by patches: where the series lands, and what the overlays find there."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools.carry.landing import Landing
from tools.carry.name_drift import Fate, NameDrift


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
        names: What became of the names that the overlays use.
        replaced: Files of the release that overlays would replace. A rebase to it
            does not begin, wherever the patches would land.
    """

    version: str
    cells: tuple[Cell, ...]
    names: tuple[NameDrift, ...]
    replaced: tuple[str, ...]

    @property
    def overlays(self) -> str:
        """Whether the overlays can be laid, in a word or two."""
        return f"replace {len(self.replaced)}" if self.replaced else "laid"

    @property
    def broken(self) -> list[NameDrift]:
        """The uses that the release cannot satisfy."""
        return [name for name in self.names if name.fate.weight >= Fate.MISFIT.weight]

    @property
    def fates(self) -> dict[str, int]:
        """How many of the used names changed, by the worst that is true of each."""
        worst: dict[str, Fate] = {}
        for name in self.names:
            known = worst.get(name.use.target, Fate.SAME)
            worst[name.use.target] = max(known, name.fate, key=lambda fate: fate.weight)
        return dict(Counter(fate.value for fate in worst.values()))


@dataclass(frozen=True)
class Matrix:
    """The whole table."""

    pinned: str
    patches: tuple[str, ...]
    columns: tuple[Column, ...]

    def share(self, versions: Sequence[str]) -> float:
        """Return the share of good cells in the columns of some releases.

        The overlays of a release are one more cell: they can be laid, or not.
        """
        columns = [column for column in self.columns if column.version in versions]
        good = [cell.good for column in columns for cell in column.cells]
        good += [not column.replaced for column in columns]
        return sum(good) / len(good) if good else 0.0

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
                    "names": column.fates,
                    "broken": [
                        {
                            "name": name.use.target,
                            "file": name.use.file,
                            "change": name.fate.value,
                            "why": name.why,
                        }
                        for name in column.broken
                    ],
                    "overlays": column.overlays,
                    "clashes": list(column.replaced),
                }
                for column in self.columns
            ],
        }
