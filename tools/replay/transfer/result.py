"""The transfer benchmark: everything that was counted and timed."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tools.replay.transfer import goal
from tools.replay.transfer.agents import LAYERS, ONE_RUN, Moved
from tools.replay.transfer.goal import Goal, mean_runs, p99_runs
from tools.replay.transfer.pools import PAGED, TAGMA, PoolRun, PoolSetting, Transfer


@dataclass(frozen=True)
class Load:
    """Both backends on the seeds of one workload, or on a trace."""

    name: str
    paged: tuple[PoolRun, ...]
    tagma: tuple[PoolRun, ...]

    @property
    def sides(self) -> dict[str, tuple[PoolRun, ...]]:
        """The runs of each backend."""
        return {PAGED: self.paged, TAGMA: self.tagma}


@dataclass(frozen=True)
class TransferBenchmark:
    """All that was measured.

    Args:
        loads: What the pools gave.
        moved: What the agents did with it.
        setting: How the pools were used.
    """

    loads: tuple[Load, ...]
    moved: tuple[Moved, ...]
    setting: PoolSetting

    def goals(self) -> list[Goal]:
        """Return the goals and how far each is reached."""
        return [
            *(g for load in self.loads for g in goal.of_load(load.paged, load.tagma)),
            *(self._descriptors(each) for each in self.moved),
        ]

    @staticmethod
    def _descriptors(each: Moved) -> Goal:
        """What NIXL made of the blocks, beside what was counted in the pools."""
        expected = each.runs * each.layers
        return Goal(
            f"{each.layout}, {each.case}",
            f"NIXL's descriptors, {each.side}",
            each.descriptors,
            expected,
            each.descriptors == expected,
        )

    def cpu_shares(self, each: Moved) -> dict[str, float]:
        """Return tagma's CPU time as a part of paged's: all, and above one run."""
        if each.side != TAGMA:
            return {}
        paged, one_run = (
            next(
                other.cpu_ms
                for other in self.moved
                if (other.layout, other.case, other.side)
                == (each.layout, each.case, side)
            )
            for side in (PAGED, ONE_RUN)
        )
        shares = {"cpu_of_paged": each.cpu_ms / paged}
        if paged > one_run:
            above = (each.cpu_ms - one_run) / (paged - one_run)
            shares["cpu_of_paged_above_one_run"] = max(above, 0.0)
        return shares

    def to_data(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "setting": asdict(self.setting),
            "layers": LAYERS,
            "loads": [
                {
                    "load": load.name,
                    "backend": backend,
                    "seeds": [_data(run) for run in runs],
                }
                for load in self.loads
                for backend, runs in load.sides.items()
            ],
            "agents": [asdict(each) | self.cpu_shares(each) for each in self.moved],
            "goals": [asdict(one) for one in self.goals()],
        }


def by_length(runs: tuple[PoolRun, ...]) -> Iterator[tuple[str, list[Transfer]]]:
    """Yield all transfers of the load, then those of each length of probes."""
    yield "all", [transfer for run in runs for transfer in run.counted]
    for tokens in sorted(set(runs[0].stream.probes.values())):
        yield (
            f"{tokens:,} tokens",
            [probe for run in runs for probe in run.probes(tokens)],
        )


def _data(run: PoolRun) -> dict[str, Any]:
    return {
        "seed": run.stream.seed,
        "requests": len(run.stream.requests),
        "preempted": run.preempted,
        "prefill": asdict(run.prefill),
        "decode": asdict(run.decode),
        "transfers": {
            name: {
                "count": len(transfers),
                "blocks": sum(each.blocks for each in transfers),
                "prefill_runs": sum(each.prefill_runs for each in transfers),
                "decode_runs": sum(each.decode_runs for each in transfers),
                "runs_mean": mean_runs(transfers),
                "runs_p99": p99_runs(transfers),
            }
            for name, transfers in by_length((run,))
        },
    }
