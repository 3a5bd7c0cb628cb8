"""What the placement benchmark must show."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tools.replay.case import Conditions
from tools.replay.comparison import PolicyComparison, Spread
from tools.replay.placement.plan import (
    BOUNDS,
    DEFAULT,
    MOONCAKE,
    OFF,
    PAGED,
    UNBOUND,
    WHOLE,
)


@dataclass(frozen=True)
class Goal:
    """A bound on a count.

    Args:
        measure: What was counted.
        load: The workload and its live share.
        policy: Who placed.
        value: The count.
        limit: What it must be equal to, or must not exceed.
        is_met: Whether it is so.
        seeds: How many seeds the count is from.
    """

    measure: str
    load: str
    policy: str
    value: float
    limit: float
    is_met: bool
    seeds: int


# Mean and 99th percentile of a request's ranges, by workload and live share: what
# the policy gave in a simulation of its own. The means are compared as they were
# noted, with so many digits.
_Ranges = dict[tuple[str, float], tuple[str, int]]
_UNBOUND: _Ranges = {
    ("chat", 0.7): ("1.54", 4),
    ("chat", 0.9): ("2.08", 7),
    ("chat", 0.98): ("4.9", 20),
    ("long context", 0.7): ("2.70", 10),
    ("long context", 0.9): ("2.66", 10),
    ("long context", 0.98): ("3.72", 14),
    ("reasoning", 0.7): ("2.53", 8),
    ("reasoning", 0.9): ("3.10", 9),
    ("reasoning", 0.98): ("9.3", 35),
    (MOONCAKE, 0.5): ("2.35", 6),
    (MOONCAKE, 0.7): ("2.46", 6),
    (MOONCAKE, 0.9): ("3.05", 10),
    (WHOLE, 0.7): ("2.40", 6),
}
_BOUND: _Ranges = {
    ("chat", 0.7): ("1.55", 4),
    ("chat", 0.9): ("2.18", 7),
    ("chat", 0.98): ("5.7", 22),
    ("long context", 0.7): ("2.78", 11),
    ("long context", 0.9): ("2.64", 14),
    ("long context", 0.98): ("4.3", 18),
    ("reasoning", 0.7): ("2.76", 10),
    ("reasoning", 0.9): ("4.42", 31),
    ("reasoning", 0.98): ("11.3", 41),
    (MOONCAKE, 0.7): ("2.48", 6),
}
# The bounded ones were simulated with the first three seeds.
_RANGES = {UNBOUND: (_UNBOUND, 5), DEFAULT: (_BOUND, 3)}
_MOST_STEP_COPIES = 4600
_MOST_COPIES_PER_BLOCK = 2.5
# The sums of the first are shown.
_EQUAL = {
    "prefix hits": ("hit_tokens", "prompt_tokens"),
    "preemptions": ("preemptions",),
    "removed hashes and their order": ("evicted_blocks", "removed"),
}


def goals(comparisons: Sequence[PolicyComparison]) -> tuple[Goal, ...]:
    """Return the goals and how far each is reached.

    Those for ranges are for the loads that were simulated; the others for any.
    """
    return tuple(goal for one in comparisons for goal in _LoadGoals(one))


def load_name(conditions: Conditions) -> str:
    """Return a workload and its live share."""
    return f"{conditions.workload}, {conditions.live_share:.0%}"


@dataclass(frozen=True)
class _LoadGoals:
    """The goals on one load."""

    comparison: PolicyComparison

    def __iter__(self) -> Iterator[Goal]:
        for policy in BOUNDS:
            yield from self._equal_to_paged(policy)
        for policy in (UNBOUND, DEFAULT):
            yield from self._ranges(policy)
            copies = self.comparison.spread(policy, "copies_per_block").mean
            yield self._goal("copies a block", policy, copies, _MOST_COPIES_PER_BLOCK)
        worst = self.comparison.spread(DEFAULT, "step_copies_max").most
        yield self._goal("copies of the worst step", DEFAULT, worst, _MOST_STEP_COPIES)
        copies = self.comparison.spread(OFF, "copies_per_block").most
        yield self._goal("copies a block", OFF, copies, 0)

    def _equal_to_paged(self, policy: str) -> Iterator[Goal]:
        """What stays cached is paged's choice, so these are equal for each seed."""
        ours, paged = self.comparison.runs[policy], self.comparison.runs[PAGED]
        for name, measures in _EQUAL.items():
            value, limit = (
                sum(getattr(run, measures[0]) for run in runs) for runs in (ours, paged)
            )
            is_equal = all(
                getattr(a, measure) == getattr(b, measure)
                for a, b in zip(ours, paged, strict=True)
                for measure in measures
            )
            yield Goal(
                f"{name}, equal to paged's", load_name(self.comparison.conditions),
                policy, value, limit, is_equal, len(ours),
            )  # fmt: skip

    def _ranges(self, policy: str) -> Iterator[Goal]:
        table, seeds = _RANGES[policy]
        conditions = self.comparison.conditions
        limits = table.get((conditions.workload, conditions.live_share))
        if limits is None:
            return
        runs = self.comparison.runs[policy][:seeds]
        mean = Spread.of([run.runs_mean for run in runs]).mean
        p99 = Spread.of([run.runs_p99 for run in runs]).mean
        for name, value, noted in (
            ("ranges, mean", mean, limits[0]),
            ("ranges, p99", p99, str(limits[1])),
        ):
            digits = len(noted.partition(".")[2])
            is_met = round(value, digits) <= float(noted)
            yield replace(
                self._goal(name, policy, value, float(noted)),
                is_met=is_met,
                seeds=len(runs),
            )

    def _goal(self, measure: str, policy: str, value: float, most: float) -> Goal:
        load = load_name(self.comparison.conditions)
        seeds = len(self.comparison.runs[policy])
        return Goal(measure, load, policy, value, most, value <= most, seeds)
