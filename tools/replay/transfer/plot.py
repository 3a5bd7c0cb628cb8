"""Descriptors against the blocks of a transfer, as a plot."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tools.replay.transfer.agents import LAYERS
from tools.replay.transfer.result import Load, TransferBenchmark
from tools.replay.transfer.stream import BLOCK_SIZE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {"paged": "#d95f02", "tagma": "#1b9e77"}


def draw(bench: TransferBenchmark, path: Path) -> None:
    """Draw the descriptors of each transfer, one panel a load.

    Points are transfers, probes among them; lines are means by length. Both axes are
    logarithmic. A descriptor of each layer is the least there can be.

    Args:
        bench: What was counted.
        path: The image to write.
    """
    # Only this needs it, and it takes long to import.
    from matplotlib.figure import Figure

    columns = min(3, len(bench.loads))
    rows = -(-len(bench.loads) // columns)
    figure = Figure(figsize=(4 * columns, 3.2 * rows + 0.4), layout="constrained")
    for index, load in enumerate(bench.loads):
        axes = figure.add_subplot(rows, columns, index + 1)
        _draw_load(axes, load)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)


def _draw_load(axes: "Axes", load: Load) -> None:
    axes.set_title(load.name, fontsize="medium")
    axes.set_xlabel("tokens transferred")
    axes.set_ylabel(f"descriptors, {LAYERS} layers")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(axis="x", rotation=30, labelsize="small")
    for backend, runs in load.sides.items():
        points = [
            (each.blocks * BLOCK_SIZE, each.runs * LAYERS)
            for run in runs
            for each in run.transfers
            if each.number >= run.stream.warm_up and each.blocks
        ]
        bins: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for point in points:
            bins[point[0].bit_length()].append(point)
        means = [
            tuple(sum(values) / len(values) for values in zip(*bins[size], strict=True))
            for size in sorted(bins)
        ]
        color = _COLORS[backend]
        shown = points[:: max(1, len(points) // 2000)]
        axes.plot(*zip(*shown, strict=True), ".", color=color, alpha=0.15, ms=3)
        axes.plot(*zip(*means, strict=True), "o-", color=color, ms=4, label=backend)
    axes.axhline(LAYERS, color="gray", lw=0.8, ls=":", label="one run")
