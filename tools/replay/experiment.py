"""Every policy on every case."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tools.base import console
from tools.replay.buddy import Buddy
from tools.replay.case import Case
from tools.replay.case_result import CaseResult
from tools.replay.fit import BestFit, FirstFit
from tools.replay.paged import ContiguousRuns, Paged
from tools.replay.policy import Policy
from tools.replay.simulator import Simulator
from tools.replay.tagma import Engine

BASELINES: dict[str, Callable[[int], Policy]] = {
    "paged": Paged,
    "contiguous runs": ContiguousRuns,
    "first fit": FirstFit,
    "best fit": BestFit,
    "buddy": Buddy,
}


@dataclass(frozen=True)
class Worker:
    """Runs cases, in this process or in another.

    Args:
        engines: Those to compare, by the policies' names.
    """

    engines: Mapping[str, Engine]

    def __call__(self, case: Case) -> CaseResult:
        """Run one case."""
        policy = self._policy(case.policy, case.setting.num_blocks)
        begun = time.perf_counter()
        counts = Simulator(policy, case.source(), case.setting).run()
        return CaseResult.of(case, counts, time.perf_counter() - begun)

    def _policy(self, name: str, num_blocks: int) -> Policy:
        """Return an empty pool."""
        if name in self.engines:
            return self.engines[name].pool(num_blocks)
        return BASELINES[name](num_blocks)


def run_all(
    cases: Sequence[Case], worker: Worker, jobs: int = 1
) -> Iterator[tuple[Case, CaseResult]]:
    """Run cases and yield what each gave, in order.

    Args:
        cases: What to run.
        worker: What runs them.
        jobs: Processes to use.
    """
    if jobs == 1:
        yield from zip(cases, map(worker, cases), strict=True)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(cases, pool.map(worker, cases), strict=True)


def watched(
    cases: Sequence[Case], worker: Worker, jobs: int
) -> Iterator[tuple[Case, CaseResult]]:
    """Do the same and show how far it is."""
    with console.step("replay", len(cases)) as step:
        for finished in run_all(cases, worker, jobs):
            step.advance(1)
            yield finished
