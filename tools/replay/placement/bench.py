"""The placement benchmark: everything that was counted, and the goals."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from tools.replay.case import Conditions
from tools.replay.comparison import PolicyComparison, to_data
from tools.replay.placement import table
from tools.replay.placement.before import before, commit
from tools.replay.placement.goal import Goal, goals, load_name
from tools.replay.placement.plan import BOUNDS
from tools.replay.placement.price import MODELS


@dataclass(frozen=True)
class PlacementBenchmark:
    """All counts of one run.

    Args:
        comparisons: The policies side by side, on each load.
        not_run: Loads that there was no trace for.
    """

    comparisons: Sequence[PolicyComparison]
    not_run: Sequence[Conditions]

    def goals(self) -> tuple[Goal, ...]:
        """Return the goals and how far each is reached."""
        return goals(self.comparisons)

    def missed(self) -> int:
        """Return how many goals are missed."""
        return sum(not goal.is_met for goal in self.goals())

    def tables(self) -> Iterator[Table]:
        """Return what was counted, what it costs and what is missed."""
        yield table.counts(self.comparisons, self.not_run)
        yield table.prices(self.comparisons)
        if self.missed():
            yield table.missed(self.goals())

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON."""
        recorded = [before(one.conditions) for one in self.comparisons]
        return {
            "comparisons": to_data(self.comparisons),
            "before": {
                "commit": commit(),
                "loads": [asdict(load) for load in recorded if load],
            },
            "step_costs": [
                _costs(one, policy) for one in self.comparisons for policy in BOUNDS
            ],
            "not_run": [asdict(load) for load in self.not_run],
            "goals": [asdict(goal) for goal in self.goals()],
        }


def _costs(comparison: PolicyComparison, policy: str) -> dict[str, Any]:
    """Return what a step's copies cost: mean, 99th percentile and worst."""
    steps = table.step_copies(comparison, policy)
    return {
        "load": load_name(comparison.conditions),
        "policy": policy,
        "blocks": steps,
        "models": {
            model.name: {
                "bytes": [n * model.block_bytes for n in steps],
                "microseconds": [model.microseconds(n) for n in steps],
            }
            for model in MODELS
        },
    }
