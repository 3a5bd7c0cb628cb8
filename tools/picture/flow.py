"""A picture of boxes and arrows."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

_WIDTH, _HEIGHT = 2.5, 1.0  # of a box; the grid's cells are larger by the gaps
_GAP_X, _GAP_Y = 1.35, 0.62
_INCHES = 0.72  # of one unit
_PAPER, _INK, _PALE = "#ffffff", "#24292f", "#57606a"


class Kind(Enum):
    """What a box stands for; its value is its colour."""

    TEXT = "#ddf4ff"  # files in the repository
    MADE = "#dafbe1"  # what commands make under build/
    CODE = "#fff8c5"  # code of the fork
    UPSTREAM = "#eaeef2"  # what upstream has


@dataclass(frozen=True)
class Box:
    """A box in a cell of the grid.

    Args:
        column: Counted from the left.
        row: Counted from the top.
        title: Its first line.
        lines: What is written below the title.
        kind: What it stands for.
    """

    column: float
    row: float
    title: str
    lines: tuple[str, ...]
    kind: Kind

    @property
    def middle(self) -> tuple[float, float]:
        """Where its middle lies."""
        return (
            self.column * (_WIDTH + _GAP_X) + _WIDTH / 2,
            -self.row * (_HEIGHT + _GAP_Y) - _HEIGHT / 2,
        )


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes.

    Args:
        source: The key of the box where it begins.
        target: The key of the box where it ends.
        label: What is written beside it.
        back: It leads from what was made to what it is made of; drawn dashed.
        bend: How far it leaves the straight line, as a share of its length.
    """

    source: str
    target: str
    label: str = ""
    back: bool = False
    bend: float = 0.0


@dataclass(frozen=True)
class Flow:
    """A picture.

    Args:
        boxes: By key.
        arrows: Between these keys.
        meanings: What each kind of box stands for here.
    """

    boxes: Mapping[str, Box]
    arrows: tuple[Arrow, ...]
    meanings: Mapping[Kind, str]


def draw(flow: Flow, path: Path) -> None:
    """Write a picture as SVG; the same picture gives the same bytes."""
    # Only this needs it, and it takes long to import.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = 1 + max(box.column for box in flow.boxes.values())
    rows = 1 + max(box.row for box in flow.boxes.values())
    width = columns * (_WIDTH + _GAP_X) - _GAP_X + 0.4
    height = rows * (_HEIGHT + _GAP_Y) + 0.2
    with rc_context({"svg.hashsalt": "flow", "svg.fonttype": "none"}):
        figure = Figure(figsize=(width * _INCHES, height * _INCHES), facecolor=_PAPER)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(-0.2, width - 0.2)
        axes.set_ylim(0.2 - height, 0.2)
        patches = {key: _box(axes, box) for key, box in flow.boxes.items()}
        for arrow in flow.arrows:
            _arrow(axes, flow, arrow, patches)
        _legend(axes, flow.meanings, 0.45 - height)
        figure.savefig(path, metadata={"Date": None})


def _box(axes: Any, box: Box) -> Any:
    """Draw a box and return its outline, at which arrows end."""
    from matplotlib.patches import FancyBboxPatch

    x, y = box.middle
    outline = FancyBboxPatch(
        (x - _WIDTH / 2, y - _HEIGHT / 2), _WIDTH, _HEIGHT,
        boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=box.kind.value, edgecolor=_PALE, linewidth=0.8,
    )  # fmt: skip
    axes.add_patch(outline)
    top = y + 0.13 * len(box.lines)
    axes.text(x, top, box.title, ha="center", va="center", fontsize=8,
              weight="bold", color=_INK)  # fmt: skip
    for number, line in enumerate(box.lines, 1):
        axes.text(x, top - 0.26 * number, line, ha="center", va="center",
                  fontsize=6.5, color=_PALE)  # fmt: skip
    return outline


def _arrow(axes: Any, flow: Flow, arrow: Arrow, patches: Mapping[str, Any]) -> None:
    (x0, y0), (x1, y1) = (
        flow.boxes[key].middle for key in (arrow.source, arrow.target)
    )
    axes.annotate(
        "", (x1, y1), (x0, y0),
        arrowprops={
            "arrowstyle": "-|>", "color": _INK, "linewidth": 0.9,
            "linestyle": "--" if arrow.back else "-", "shrinkA": 0, "shrinkB": 1,
            "patchA": patches[arrow.source], "patchB": patches[arrow.target],
            "connectionstyle": f"arc3,rad={arrow.bend}",
        },
    )  # fmt: skip
    if arrow.label:
        # Matplotlib's arc bends to the right of its direction by half of `bend`.
        x = (x0 + x1) / 2 + arrow.bend * (y1 - y0) / 2
        y = (y0 + y1) / 2 - arrow.bend * (x1 - x0) / 2
        axes.text(x, y, arrow.label, ha="center", va="center", fontsize=6.5,
                  color=_INK, bbox={"facecolor": _PAPER, "edgecolor": "none",
                                    "pad": 1.0})  # fmt: skip


def _legend(axes: Any, meanings: Mapping[Kind, str], y: float) -> None:
    from matplotlib.patches import Rectangle

    x = 0.0
    for kind, meaning in meanings.items():
        axes.add_patch(Rectangle((x, y - 0.1), 0.3, 0.2, facecolor=kind.value,
                                 edgecolor=_PALE, linewidth=0.6))  # fmt: skip
        axes.text(x + 0.4, y, meaning, va="center", fontsize=6.5, color=_PALE)
        x += 0.9 + 0.105 * len(meaning)
