"""The trade-off between contiguous placement and the prefix cache, as a plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.replay.experiment import BASELINES, Conditions
from tools.replay.result import Comparison


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw hits against runs per request, one panel per conditions.

    A line joins the engines, in their order, so that builds with different values
    of one parameter form its curve.

    Args:
        comparisons: What was measured; those without a prefix cache are left out.
        path: The image to write.
    """
    # Only this needs it, and it takes long to import.
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    shown = [c for c in comparisons if c.conditions.prefix_cache]
    columns = min(3, len(shown)) or 1
    rows = -(-len(shown) // columns) or 1
    figure = Figure(figsize=(4.5 * columns, 3.5 * rows + 0.6), layout="constrained")
    lines: dict[str, Any] = {}
    for index, comparison in enumerate(shown):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_title(_title(comparison.conditions), fontsize="medium")
        axes.set_xlabel("runs per live request")
        axes.set_ylabel("share of prompt tokens found")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        engines = [name for name in comparison.runs if name not in BASELINES]
        if len(engines) > 1:
            curve = [_point(comparison, name) for name in engines]
            axes.plot(*zip(*curve, strict=True), "-", color="0.6", zorder=0)
        for name in comparison.runs:
            marker = "o" if name in engines else "s"
            lines[name] = axes.plot(*_point(comparison, name), marker, alpha=0.8)[0]
        points = [_point(comparison, name) for name in comparison.runs]
        axes.set_xlim(0.9, 1.5 * max(runs for runs, _ in points))
        axes.set_ylim(0, 1.1 * max(hits for _, hits in points) or 1)
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=2 * columns)
    figure.savefig(path, dpi=150)


def _title(conditions: Conditions) -> str:
    return (
        f"{conditions.workload}, {conditions.live_share:.0%} live, "
        f"blocks of {conditions.block_size}"
    )


def _point(comparison: Comparison, policy: str) -> tuple[float, float]:
    return (
        comparison.spread(policy, "live_runs_mean").mean,
        comparison.spread(policy, "hit_share").mean,
    )
