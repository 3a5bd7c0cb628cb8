"""The trade-off between contiguous placement and the prefix cache, as a plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.replay.case import Conditions
from tools.replay.comparison import PolicyComparison
from tools.replay.experiment import BASELINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOG_FROM = 20  # times as many runs


def draw(comparisons: Sequence[PolicyComparison], path: Path) -> None:
    """Draw hits against runs per request, one panel per conditions.

    A line joins the engines of one variant, in their order: builds with different
    values of a parameter form its curve. The values at the ends of the first curve
    are named. Axes do not begin at zero.

    Args:
        comparisons: What was measured; those without a prefix cache are left out.
        path: The image to write.
    """
    # Only this needs it, and it takes long to import.
    from matplotlib.figure import Figure

    shown = [c for c in comparisons if c.conditions.prefix_cache]
    columns = min(3, len(shown)) or 1
    rows = -(-len(shown) // columns) or 1
    figure = Figure(figsize=(4.5 * columns, 3.5 * rows + 0.6), layout="constrained")
    lines: dict[str, Any] = {}
    for index, comparison in enumerate(shown):
        axes = figure.add_subplot(rows, columns, index + 1)
        lines |= _draw_curves(axes, comparison)
        _set_limits(axes, [_point(comparison, name) for name in comparison.runs])
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=2 * columns)
    figure.savefig(path, dpi=150)


def _draw_curves(axes: "Axes", comparison: PolicyComparison) -> dict[str, Any]:
    """Draw a panel's curves and return their lines by name."""
    axes.set_title(_title(comparison.conditions), fontsize="medium")
    axes.set_xlabel("runs per live request")
    axes.set_ylabel("share of prompt tokens found")
    curves: dict[str, list[str]] = {}
    for name in comparison.runs:
        curves.setdefault(_curve(name), []).append(name)
    lines = {}
    for curve, names in curves.items():
        points = [_point(comparison, name) for name in names]
        style = "s" if curve in BASELINES else "o-"
        lines[curve] = axes.plot(*zip(*points, strict=True), style, alpha=0.8)[0]
    first = next(iter(curves.values()), [])
    for name in {*first[:1], *first[-1:]} if len(first) > 1 else ():
        value = name.rpartition("range = ")[2]
        axes.annotate(value, _point(comparison, name), fontsize="small")
    return lines


def _set_limits(axes: "Axes", points: Sequence[tuple[float, float]]) -> None:
    from matplotlib.ticker import NullFormatter

    runs, hits = zip(*points, strict=True)
    if max(runs) > _LOG_FROM * min(runs):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(0.9 * min(runs), 1.2 * max(runs))
    axes.set_ylim(0.9 * min(hits), 1.1 * max(hits) or 1)


def _title(conditions: Conditions) -> str:
    return (
        f"{conditions.workload}, {conditions.live_share:.0%} live, "
        f"blocks of {conditions.block_size}"
    )


def _curve(policy: str) -> str:
    """Return a policy's name without the value of a parameter."""
    variant, found, _ = policy.rpartition("range = ")
    return variant.rstrip(", ") or "tagma" if found else policy


def _point(comparison: PolicyComparison, policy: str) -> tuple[float, float]:
    return (
        comparison.spread(policy, "live_runs_mean").mean,
        comparison.spread(policy, "hit_share").mean,
    )
