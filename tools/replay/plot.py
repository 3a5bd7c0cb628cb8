"""The trade-off between contiguous placement and the prefix cache, as a plot."""

from collections.abc import Sequence
from pathlib import Path

from tools.replay.result import Comparison


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw hits against runs per request, one panel per conditions.

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
        for policy in comparison.runs:
            runs = comparison.spread(policy, "live_runs_mean").mean
            hits = comparison.spread(policy, "hit_share").mean
            axes.plot(runs, hits, "o")
            axes.annotate(policy, (runs, hits), fontsize="small")
        axes.set_xscale("log")
        axes.set_xlabel("runs per live request")
        axes.set_ylabel("prompt tokens found")
        axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=150)
