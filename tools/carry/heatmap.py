"""The matrix as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from tools.carry.landing import Landing
from tools.carry.matrix import Column, Matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# From "nobody need look" to "somebody must act"; readable without colours too, since
# each cell holds its word.
_COLOURS = {
    Landing.CLEAN: "#4c9f70",
    Landing.MOVED: "#8cc084",
    Landing.MERGED: "#c3dfa5",
    Landing.RENAMED: "#c3dfa5",
    Landing.RESOLVED: "#f2e394",
    Landing.UPSTREAM: "#9ec9e2",
    Landing.MISPLACED: "#f4a582",
    Landing.CONFLICT: "#e0796b",
    Landing.DELETED: "#c0504d",
}


_GOOD, _BAD = "#4c9f70", "#c0504d"


def draw(matrix: Matrix, path: Path) -> None:
    """Draw releases against patches.

    Args:
        matrix: The table.
        path: The image to write; the same table gives the same bytes.
    """
    # Only this needs it, and it takes long to import.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = [name.removesuffix(".patch") for name in matrix.patches]
    names += ["overlays", "names that overlays use"]
    size = (4.2 + 0.95 * len(matrix.columns), 1.2 + 0.36 * len(names))
    with rc_context({"svg.hashsalt": "matrix", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        for x, column in enumerate(matrix.columns):
            for row, (text, colour) in enumerate(_cells(column)):
                _draw_cell(axes, x, _top(row, matrix), text, colour)
        axes.set_xlim(0, len(matrix.columns))
        axes.set_ylim(_top(len(names), matrix), 0)
        axes.set_xticks([x + 0.48 for x in range(len(matrix.columns))])
        axes.set_xticklabels([column.version for column in matrix.columns])
        axes.set_yticks([_top(row, matrix) + 0.46 for row in range(len(names))])
        axes.set_yticklabels(names)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.savefig(path, metadata={"Date": None})


def _top(row: int, matrix: Matrix) -> float:
    """Return where a row begins: those below the patches stand apart."""
    return row + (0.2 if row >= len(matrix.patches) else 0.0)


def _cells(column: Column) -> list[tuple[str, str]]:
    """Return the word and the colour of each cell of a column."""
    broken = len(column.broken)
    return [
        *((cell.landing.value, _COLOURS[cell.landing]) for cell in column.cells),
        (column.overlays, _BAD if column.replaced else _GOOD),
        (f"{broken} broken" if broken else "fit", _BAD if broken else _GOOD),
    ]


def _draw_cell(axes: "Axes", x: int, y: float, text: str, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), 0.96, 0.92, color=colour))
    axes.text(x + 0.48, y + 0.46, text, ha="center", va="center", fontsize=8)
