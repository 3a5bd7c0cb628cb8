"""The placement benchmark's tables."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from tools.replay.case import Conditions
from tools.replay.comparison import PolicyComparison
from tools.replay.placement.before import Before, before, commit
from tools.replay.placement.goal import Goal, load_name
from tools.replay.placement.plan import BOUNDS, DEFAULT, PAGED, POLICIES, UNBOUND
from tools.replay.placement.price import MODELS

_STEP = ("step_copies_mean", "step_copies_p99", "step_copies_max")


def counts(
    comparisons: Sequence[PolicyComparison], not_run: Sequence[Conditions]
) -> Table:
    """Return every policy on every load; means over the seeds, the worst step."""
    made = _table("ranges and copies", ("load", "policy"), (
        "ranges", "p99", "hits of paged's", "preempted", "removed hashes",
        "copies a block", "a step", "p99", "worst",
    ))  # fmt: skip
    for comparison in comparisons:
        for policy in POLICIES:
            made.add_row(
                load_name(comparison.conditions), policy, *_cells(comparison, policy)
            )
            if policy == PAGED and (recorded := before(comparison.conditions)):
                made.add_row(
                    load_name(comparison.conditions),
                    "the one before",
                    *_cells_before(recorded),
                )
        made.add_section()
    for load in not_run:
        made.add_row(load_name(load), "not run: no TRACE")
    seeds = sorted({run.seed for one in comparisons for run in one.runs[DEFAULT]})
    made.caption = (
        f"Synthetic sessions: means over seeds {seeds[0]} to {seeds[-1]}, the worst "
        f"step of all. The one before: its figures were recorded at commit {commit()}."
    )
    return made


def _cells(comparison: PolicyComparison, policy: str) -> Iterator[str]:
    def mean(measure: str) -> float:
        return comparison.spread(policy, measure).mean

    yield f"{mean('runs_mean'):,.2f}"
    yield f"{mean('runs_p99'):,.0f}"
    yield f"{hits_of_paged(comparison, policy):.3f}"
    yield f"{mean('preemptions'):,.1f}"
    yield f"{mean('evicted_blocks'):,.0f}"
    if policy in BOUNDS:
        yield f"{mean('copies_per_block'):.2f}"
        yield f"{mean('step_copies_mean'):,.1f}"
        yield f"{mean('step_copies_p99'):,.0f}"
        yield f"{comparison.spread(policy, 'step_copies_max').most:,.0f}"


def _cells_before(recorded: Before) -> Iterator[str]:
    yield f"{recorded.runs_mean:,.2f}"
    yield f"{recorded.runs_p99:,.0f}"
    yield f"{recorded.hits_of_paged:.3f}"
    yield f"{recorded.preemptions:,.1f}"
    yield f"{recorded.evicted_blocks:,}"


def hits_of_paged(comparison: PolicyComparison, policy: str) -> float:
    """Return tokens found in the prefix cache, as a part of paged's."""
    paged = comparison.spread(PAGED, "hit_tokens").mean
    return comparison.spread(policy, "hit_tokens").mean / paged if paged else 1.0


def prices(comparisons: Sequence[PolicyComparison]) -> Table:
    """Return what the copies of a step cost: mean, 99th percentile and worst."""
    made = _table(
        "copies of a step: mean / p99 / worst", ("load", "policy"), ("blocks",)
    )
    for model in MODELS:
        made.add_column(f"{model.name}, MiB", justify="right", no_wrap=True)
        made.add_column("µs", justify="right", no_wrap=True)
    for comparison in comparisons:
        for policy in (UNBOUND, DEFAULT):
            steps = step_copies(comparison, policy)
            cells = [_join(steps)]
            for model in MODELS:
                cells.append(_join([n * model.block_bytes / 2**20 for n in steps]))
                cells.append(_join([model.microseconds(n) for n in steps]))
            made.add_row(load_name(comparison.conditions), policy, *cells)
    made.caption = (
        "Computed for an H100's bandwidth: each byte is read and written at 0.7 of "
        "3.35 TB/s."
    )
    return made


def step_copies(comparison: PolicyComparison, policy: str) -> tuple[float, ...]:
    """Return a step's mean and 99th percentile over the seeds, and the worst."""
    mean, p99, worst = (comparison.spread(policy, measure) for measure in _STEP)
    return mean.mean, p99.mean, worst.most


def _join(values: Sequence[float]) -> str:
    return " / ".join(f"{value:,.0f}" for value in values)


def missed(goals: Sequence[Goal]) -> Table:
    """Return the goals that are missed."""
    made = _table("missed goals", ("measure", "load", "policy"), (
        "counted", "goal", "seeds",
    ))  # fmt: skip
    for goal in goals:
        if not goal.is_met:
            made.add_row(
                goal.measure, goal.load, goal.policy,
                f"{goal.value:,.3f}".rstrip("0").rstrip("."),
                f"{goal.limit:,.10g}", str(goal.seeds),
            )  # fmt: skip
    return made


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    made = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left"
    )
    for name in names:
        made.add_column(name, no_wrap=True)
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    return made
