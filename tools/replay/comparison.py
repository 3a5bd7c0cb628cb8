"""What the policies did, side by side: a table for people, data for programs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rich import box
from rich.table import Table

from tools.replay.case import Case, Conditions
from tools.replay.case_result import CaseResult

_REFERENCE = "paged"
_MEASURES = tuple(
    field.name for field in fields(CaseResult) if field.name not in ("seed", "removed")
)


@dataclass(frozen=True)
class Spread:
    """A measure over the seeds."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise one value per seed."""
        return cls(sum(values) / len(values), min(values), max(values))

    def __str__(self) -> str:
        """Return the mean, and the range in brackets where there is one."""
        values = (self.mean, self.least, self.most)
        digits = max(0, 3 - len(str(int(self.most))))
        if all(value == int(value) for value in values):
            digits = 0
        mean, least, most = (f"{value:,.{digits}f}" for value in values)
        return mean if least == most else f"{mean} ({least}-{most})"


@dataclass(frozen=True)
class PolicyComparison:
    """All policies under the same conditions.

    Args:
        conditions: What they have in common.
        runs: What each policy gave, one run per seed.
    """

    conditions: Conditions
    runs: Mapping[str, tuple[CaseResult, ...]]

    def spread(self, policy: str, measure: str) -> Spread:
        """Return a measure of a policy over its seeds."""
        return Spread.of([getattr(run, measure) for run in self.runs[policy]])

    def hits_of_reference(self, policy: str) -> Spread | None:
        """Return hit tokens as a part of paged's, which must have had some."""
        pairs = zip(self.runs[policy], self.runs.get(_REFERENCE, ()), strict=False)
        shares = [a.hit_share / b.hit_share for a, b in pairs if b.hit_share]
        return Spread.of(shares) if shares else None


def compare(results: Iterable[tuple[Case, CaseResult]]) -> tuple[PolicyComparison, ...]:
    """Group runs by their conditions, in the order in which they came."""
    found: dict[Conditions, dict[str, tuple[CaseResult, ...]]] = {}
    for case, run in results:
        runs = found.setdefault(case.conditions, {})
        runs[case.policy] = (*runs.get(case.policy, ()), run)
    return tuple(
        PolicyComparison(conditions, runs) for conditions, runs in found.items()
    )


def tables(comparisons: Sequence[PolicyComparison]) -> Iterator[Table]:
    """Yield a table per conditions: means over the seeds, and ranges in brackets."""
    for comparison in comparisons:
        made = Table(
            box=box.SIMPLE, title=str(comparison.conditions), title_justify="left"
        )
        made.add_column("policy", no_wrap=True)
        for name in (
            "live", "runs", "p50", "p99", "while live", "p99", "prefix hits",
            "of paged's", "evicted", "over cap", "preempted", "admitted",
        ):  # fmt: skip
            made.add_column(name, justify="right", no_wrap=True)
        for policy in comparison.runs:
            made.add_row(policy, *_cells(comparison, policy))
        yield made


def _cells(comparison: PolicyComparison, policy: str) -> Iterator[str]:
    def spread(measure: str) -> Spread:
        return comparison.spread(policy, measure)

    yield f"{spread('live_share').mean:.0%}"
    yield str(spread("runs_mean"))
    yield f"{spread('runs_p50').mean:,.0f}"
    yield str(spread("runs_p99"))
    yield str(spread("live_runs_mean"))
    yield f"{spread('live_runs_p99').mean:,.0f}"
    hits = comparison.hits_of_reference(policy)
    yield f"{spread('hit_share').mean:.1%}" if hits else "-"
    yield str(hits) if hits else "-"
    for measure in ("evicted_blocks", "over_cap_requests", "preemptions", "admissions"):
        yield f"{spread(measure).mean:,.0f}"


def to_data(comparisons: Sequence[PolicyComparison]) -> list[dict[str, Any]]:
    """Return everything as JSON values: per run, and over the seeds."""
    return [
        asdict(comparison.conditions)
        | {
            "policies": [
                {
                    "policy": policy,
                    "hits_of_paged": _data(comparison.hits_of_reference(policy)),
                    "runs": [asdict(run) for run in runs],
                }
                | {
                    measure: _data(comparison.spread(policy, measure))
                    for measure in _MEASURES
                }
                for policy, runs in comparison.runs.items()
            ]
        }
        for comparison in comparisons
    ]


def _data(spread: Spread | None) -> dict[str, float] | None:
    return asdict(spread) if spread else None
