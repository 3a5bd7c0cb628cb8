"""The trade-off between contiguous placement and the prefix cache, as a plot."""

from collections.abc import Sequence
from pathlib import Path

from tools.replay.experiment import BASELINES
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

    shown = [c for c in comparisons if c.conditions.prefix_cache]
    columns = min(3, len(shown)) or 1
    rows = -(-len(shown) // columns) or 1
    figure = Figure(figsize=(4.5 * columns, 3.5 * rows), layout="constrained")
    for index, comparison in enumerate(shown):
        axes = figure.add_subplot(rows, columns, index + 1)
        conditions = comparison.conditions
        axes.set_title(
            f"{conditions.workload}, {conditions.live_share:.0%} live, "
            f"blocks of {conditions.block_size}",
            fontsize="medium",
        )
        points = [_point(comparison, policy) for policy in comparison.runs]
        engines = [
            point
            for policy, point in zip(comparison.runs, points, strict=True)
            if policy not in BASELINES
        ]
        if len(engines) > 1:
            axes.plot(*zip(*engines, strict=True), "-", color="0.6", zorder=0)
        for policy, point in zip(comparison.runs, points, strict=True):
            axes.plot(*point, "s" if policy in BASELINES else "o")
            axes.annotate(
                policy, point, (3, 3), textcoords="offset points", fontsize="small"
            )
        axes.set_xscale("log")
        axes.set_xlabel("runs per live request")
        axes.set_ylabel("prompt tokens found")
        axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=150)


def _point(comparison: Comparison, policy: str) -> tuple[float, float]:
    return (
        comparison.spread(policy, "live_runs_mean").mean,
        comparison.spread(policy, "hit_share").mean,
    )
