"""The run of the transfer benchmark."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tools.base import console
from tools.measure.pair.connector import Sites
from tools.replay.transfer import plan, pools
from tools.replay.transfer.agents import Agents, Moved
from tools.replay.transfer.plan import TransferPlan
from tools.replay.transfer.pools import PAGED, TAGMA, PoolRun, PoolSetting
from tools.replay.transfer.result import Load, TransferBenchmark
from tools.replay.transfer.stream import Stream
from tools.serve.host import Host


@dataclass(frozen=True)
class TransferRun:
    """Runs the benchmark.

    Args:
        host: The serving environment.
        sites: The folders of the packages that move blocks.
        logs: Where the programs' output goes.
        plan: What to run.
        jobs: Pools' programs that run at once.
    """

    host: Host
    sites: Sites
    logs: Path
    plan: TransferPlan
    jobs: int

    def run(self) -> TransferBenchmark:
        """Count the runs of all transfers, then make some of these transfers.

        Raises:
            ToolError: A program failed, a trace cannot be read, or a byte is wrong.
        """
        setting = PoolSetting(self.plan.num_blocks)
        runs = self._pools(setting)
        return TransferBenchmark(_loads(runs), self._agents(runs), setting)

    def _pools(self, setting: PoolSetting) -> list[PoolRun]:
        tasks = [
            (stream, backend)
            for stream in self.plan.streams()
            for backend in (PAGED, TAGMA)
        ]

        def serve(task: tuple[Stream, str]) -> PoolRun:
            stream, backend = task
            return pools.run(self.host, setting, backend, stream, plan.kept(stream))

        runs = []
        with (
            console.step("serve from two pools", len(tasks)) as step,
            ThreadPoolExecutor(self.jobs) as executor,
        ):
            for run in executor.map(serve, tasks):
                runs.append(run)
                step.advance(1)
        return runs

    def _agents(self, runs: Sequence[PoolRun]) -> tuple[Moved, ...]:
        cases, layouts = plan.cases(runs), self.plan.layouts
        log = self.logs / "bench-transfer-agents.log"
        agents = Agents(self.host, self.sites, log, self.plan.num_blocks + 1)
        with console.step("move blocks", len(cases) * len(layouts)) as step:
            moved = [
                each
                for layout in layouts
                for each in agents.move(layout, cases, lambda: step.advance(1))
            ]
        return tuple(moved)


def _loads(runs: Sequence[PoolRun]) -> tuple[Load, ...]:
    """Group runs, which come a load at a time."""
    loads = []
    for name, group in groupby(runs, lambda run: run.stream.name):
        of_load = list(group)
        paged, tagma = (
            tuple(run for run in of_load if run.backend == backend)
            for backend in (PAGED, TAGMA)
        )
        loads.append(Load(name, paged, tagma))
    return tuple(loads)
