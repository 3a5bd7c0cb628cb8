"""What the transfer benchmark must show."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.replay.counts import percentile
from tools.replay.transfer.pools import PoolRun, Transfer
from tools.replay.transfer.stream import AGENTS, CONVERSATIONS

# Runs on both sides, by the probe's tokens; means over seeds. Loads of short requests
# that hold nearly all of the decode pool leave no room to choose: shown, no goal.
_MOST_RUNS = {512: 1.0, 8192: 3.0, 32_768: 6.0}
_LOADS = (CONVERSATIONS.name, AGENTS.name)
_TRACE_P99 = 16


@dataclass(frozen=True)
class Goal:
    """A bound on a count.

    Args:
        load: The workload or the trace.
        measure: What was counted.
        value: The count.
        limit: What it must not exceed, or must equal.
        is_met: Whether it is so.
    """

    load: str
    measure: str
    value: float
    limit: float
    is_met: bool


def mean_runs(transfers: Sequence[Transfer]) -> float:
    """Return the mean of the runs on both sides; 0 if there is no transfer."""
    return sum(t.runs for t in transfers) / len(transfers) if transfers else 0.0


def p99_runs(transfers: Sequence[Transfer]) -> int:
    """Return the 99th percentile of the runs on both sides."""
    counts: dict[int, int] = {}
    for transfer in transfers:
        counts[transfer.runs] = counts.get(transfer.runs, 0) + 1
    return percentile(counts, 0.99)


def of_load(paged: Sequence[PoolRun], tagma: Sequence[PoolRun]) -> Iterator[Goal]:
    """Yield the goals on a load, whose seeds come in the same order."""
    yield from _equal_to_paged(paged, tagma)
    stream = tagma[0].stream
    for tokens in sorted(set(stream.probes.values())):
        if stream.name in _LOADS:
            probes = [probe for run in tagma for probe in run.probes(tokens)]
            value, most = mean_runs(probes), _MOST_RUNS[tokens]
            measure = f"runs of {tokens:,} tokens"
            yield Goal(stream.name, measure, value, most, value <= most)
    if not stream.probes:
        p99 = p99_runs([each for run in tagma for each in run.counted])
        yield Goal(stream.name, "runs, p99", p99, _TRACE_P99, p99 <= _TRACE_P99)


def _equal_to_paged(
    paged: Sequence[PoolRun], tagma: Sequence[PoolRun]
) -> Iterator[Goal]:
    """What is cached and who gets blocks is paged's choice, for each seed."""
    runs = (*paged, *tagma)
    measures = {
        "hits of the prefill side": [run.prefill.hit_tokens for run in runs],
        "hits of the decode side": [run.decode.hit_tokens for run in runs],
        "preemptions": [run.preempted for run in runs],
        "blocks transferred": [sum(t.blocks for t in run.transfers) for run in runs],
    }
    name, seeds = tagma[0].stream.name, len(paged)
    for measure, values in measures.items():
        theirs, ours = values[:seeds], values[seeds:]
        yield Goal(
            name, f"{measure}, equal to paged's", sum(ours), sum(theirs), ours == theirs
        )
    held = sum(run.num_held for run in runs)
    yield Goal(name, "blocks that did not come back", held, 0, held == 0)
