"""The matrix as a picture."""

from pathlib import Path

from tools.carry.landing import Landing
from tools.carry.matrix import Matrix

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


def draw(matrix: Matrix, path: Path) -> None:
    """Draw releases against patches.

    Args:
        matrix: The table.
        path: The image to write; the same table gives the same bytes.
    """
    # Only this needs it, and it takes long to import.
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rows, columns = len(matrix.patches), len(matrix.columns)
    size = (4.2 + 0.95 * columns, 1.2 + 0.36 * (rows + 1))
    with rc_context({"svg.hashsalt": "matrix", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        for x, column in enumerate(matrix.columns):
            for y, cell in enumerate(column.cells):
                colour = _COLOURS[cell.landing]
                axes.add_patch(Rectangle((x, y), 0.96, 0.92, color=colour))
                axes.text(x + 0.48, y + 0.46, cell.landing.value, ha="center",
                          va="center", fontsize=8)  # fmt: skip
            broken = len(column.broken) + len(column.clashes)
            colour = "#e0796b" if broken else "#4c9f70"
            axes.add_patch(Rectangle((x, rows + 0.2), 0.96, 0.92, color=colour))
            text = f"{broken} broken" if broken else "fit"
            axes.text(x + 0.48, rows + 0.66, text, ha="center", va="center", fontsize=8)
        axes.set_xlim(0, columns)
        axes.set_ylim(rows + 1.2, 0)
        axes.set_xticks([x + 0.48 for x in range(columns)])
        axes.set_xticklabels([column.version for column in matrix.columns])
        axes.set_yticks([*(y + 0.46 for y in range(rows)), rows + 0.66])
        names = [name.removesuffix(".patch") for name in matrix.patches]
        axes.set_yticklabels([*names, "names that overlays use"])
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.savefig(path, metadata={"Date": None})
