"""The offloading benchmark: everything that was counted and timed."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tools.replay.offload.copies import Made
from tools.replay.offload.pools import OffloadRun
from tools.replay.transfer.goal import Goal
from tools.replay.transfer.pools import PAGED, TAGMA, PoolSetting

# Of the tokens that upstream's manager finds in host memory, ours finds this part.
_HITS = 0.99
_FEWER = 10  # times as many runs has paged


@dataclass(frozen=True)
class OffloadBenchmark:
    """All that was measured.

    Args:
        runs: What the managers gave: paged and tagma in turn.
        made: What the worker made of some of it.
        setting: How the pool was used.
    """

    runs: tuple[OffloadRun, ...]
    made: tuple[Made, ...]
    setting: PoolSetting

    @property
    def pairs(self) -> Iterator[tuple[str, list[OffloadRun], list[OffloadRun]]]:
        """The loads with their runs, paged's and tagma's."""
        names = dict.fromkeys((run.stream.name, run.num_chunks) for run in self.runs)
        for name, chunks in names:
            of_load = [
                run
                for run in self.runs
                if (run.stream.name, run.num_chunks) == (name, chunks)
            ]
            yield (
                f"{name}, {chunks:,} in host memory",
                [run for run in of_load if run.backend == PAGED],
                [run for run in of_load if run.backend == TAGMA],
            )

    def goals(self) -> list[Goal]:
        """Return the goals and how far each is reached."""
        return [goal for pair in self.pairs for goal in _goals(*pair)]

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "setting": asdict(self.setting),
            "runs": [_data(run) for run in self.runs],
            "copies": [asdict(one) for one in self.made],
            "goals": [asdict(goal) for goal in self.goals()],
        }


def _goals(
    load: str, paged: Sequence[OffloadRun], tagma: Sequence[OffloadRun]
) -> Iterator[Goal]:
    theirs, ours = (sum(run.loaded_tokens for run in runs) for runs in (paged, tagma))
    found = ours / theirs if theirs else 1.0
    yield Goal(load, "hits in host memory, of upstream's", found, _HITS, found >= _HITS)
    for kind in ("stores", "loads"):
        before, after = (
            sum(t.runs for run in runs for t in run.directions[kind].transfers)
            for runs in (paged, tagma)
        )
        if before:
            yield Goal(
                load, f"runs of all {kind}", after, before / _FEWER,
                after <= before / _FEWER,
            )  # fmt: skip


def _data(run: OffloadRun) -> dict[str, Any]:
    return {
        "load": run.stream.name,
        "seed": run.stream.seed,
        "backend": run.backend,
        "num_chunks": run.num_chunks,
        "hit_tokens": run.hit_tokens,
        "loaded_tokens": run.loaded_tokens,
        "preempted": run.preempted,
    } | {
        kind: {
            "count": len(one.transfers),
            "blocks": one.mean_blocks,
            "runs": one.mean_runs,
        }
        for kind, one in run.directions.items()
    }
