"""Every policy on every workload: what is run, and what came out."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.replay import tagma
from tools.replay.extents import BestFit, Buddy, FirstFit
from tools.replay.paged import ContiguousRuns, Paged
from tools.replay.policy import Policy
from tools.replay.simulator import (
    Counts,
    Setting,
    Simulator,
    mean,
    percentile,
    token_budget,
)
from tools.replay.trace import Replay, Trace
from tools.replay.workload import Sessions, Workload, setting_for

BASELINES: dict[str, Callable[[int], Policy]] = {
    "paged": Paged,
    "contiguous runs": ContiguousRuns,
    "first fit": FirstFit,
    "best fit": BestFit,
    "buddy": Buddy,
}


@dataclass(frozen=True)
class Conditions:
    """What all policies of one comparison have in common.

    Args:
        workload: The workload's or the trace's name.
        prefix_cache: Whether contents are cached.
        block_size: Tokens per block.
        live_share: See `Setting`.
    """

    workload: str
    prefix_cache: bool
    block_size: int
    live_share: float

    def __str__(self) -> str:
        """Return them as a title."""
        cache = "with" if self.prefix_cache else "no"
        return (
            f"{self.workload}, {cache} prefix cache, blocks of {self.block_size}, "
            f"{self.live_share:.0%} live"
        )


@dataclass(frozen=True)
class Synthetic:
    """One run on a synthetic workload.

    Args:
        workload: The lengths.
        prefix_cache: Whether contents are cached.
        block_size: Tokens per block.
        live_share: See `Setting`.
        policy: Its name.
        seed: Of the workload.
        concurrency: Requests that run at once.
        turnovers: How often they are replaced.
    """

    workload: Workload
    prefix_cache: bool
    block_size: int
    live_share: float
    policy: str
    seed: int
    concurrency: int
    turnovers: int

    @property
    def conditions(self) -> Conditions:
        """What to compare it with."""
        return Conditions(
            self.workload.name, self.prefix_cache, self.block_size, self.live_share
        )

    @cached_property
    def setting(self) -> Setting:
        """The pool and the scheduler."""
        return setting_for(
            self.workload,
            self.concurrency,
            self.prefix_cache,
            self.block_size,
            self.live_share,
            self.turnovers,
        )

    def source(self) -> Sessions:
        """Return the requests."""
        return Sessions(
            self.workload, self.setting, self.concurrency, self.prefix_cache, self.seed
        )


@dataclass(frozen=True)
class Traced:
    """One run on a recorded trace.

    Args:
        trace: The requests.
        pool_tokens: Size of the pool.
        block_size: Tokens per block.
        live_share: See `Setting`.
        policy: Its name.
    """

    trace: Trace
    pool_tokens: int
    block_size: int
    live_share: float
    policy: str
    seed: int = 0

    @property
    def conditions(self) -> Conditions:
        """What to compare it with."""
        return Conditions(
            self.trace.name, self.trace.has_contents, self.block_size, self.live_share
        )

    @cached_property
    def setting(self) -> Setting:
        """The pool and the scheduler."""
        if self.trace.most_tokens > self.pool_tokens:
            raise ToolError(
                Outcome.BAD_TRACE,
                f"a request of {self.trace.name} has {self.trace.most_tokens} tokens, "
                f"and the pool only {self.pool_tokens}",
                (f"Use --pool-tokens {self.trace.most_tokens} or more",),
            )
        prompt, output = self.trace.prompt_tokens, self.trace.output_tokens
        concurrency = self.pool_tokens / (prompt + output)
        return Setting(
            self.pool_tokens // self.block_size,
            self.block_size,
            self.live_share,
            token_budget=token_budget(concurrency, prompt, output),
        )

    def source(self) -> Replay:
        """Return the requests."""
        return Replay(self.trace, self.block_size)


Case = Synthetic | Traced


@dataclass(frozen=True)
class Run:
    """What one run measured. Counts are as in `simulator.Counts`.

    Args:
        seed: Of the workload.
        num_blocks: Size of the pool.
        live_share: Part of the pool that was held, averaged over time.
        runs_mean: Runs per request when it ended.
        runs_p50: Their median.
        runs_p99: Their 99th percentile.
        runs_max: The most.
        live_runs_mean: Runs per decoding request, averaged over time.
        live_runs_p99: Their 99th percentile.
        hit_share: Part of the prompts' tokens that was found in the prefix cache.
        seconds: How long the run took.
    """

    seed: int
    num_blocks: int
    live_share: float
    runs_mean: float
    runs_p50: int
    runs_p99: int
    runs_max: int
    live_runs_mean: float
    live_runs_p99: int
    hit_tokens: int
    prompt_tokens: int
    hit_share: float
    evicted_blocks: int
    cap_events: int
    preemptions: int
    admissions: int
    seconds: float

    @classmethod
    def of(cls, case: Case, counts: Counts, seconds: float) -> "Run":
        """Summarise what a case's run counted."""
        num_blocks = case.setting.num_blocks
        return cls(
            seed=case.seed,
            num_blocks=num_blocks,
            live_share=counts.live_blocks / max(1, counts.samples * num_blocks),
            runs_mean=mean(counts.runs),
            runs_p50=percentile(counts.runs, 0.5),
            runs_p99=percentile(counts.runs, 0.99),
            runs_max=max(counts.runs, default=0),
            live_runs_mean=mean(counts.live_runs),
            live_runs_p99=percentile(counts.live_runs, 0.99),
            hit_tokens=counts.hit_tokens,
            prompt_tokens=counts.prompt_tokens,
            hit_share=counts.hit_tokens / max(1, counts.prompt_tokens),
            evicted_blocks=counts.evicted_blocks,
            cap_events=counts.cap_events,
            preemptions=counts.preemptions,
            admissions=counts.admissions,
            seconds=seconds,
        )


@dataclass(frozen=True)
class Worker:
    """Runs cases, in this process or in another.

    Args:
        engines: The files of the engines to compare, by the policies' names.
    """

    engines: Mapping[str, Path]

    def __call__(self, case: Case) -> Run:
        """Run one case."""
        policy = self._policy(case.policy, case.setting.num_blocks)
        begun = time.perf_counter()
        counts = Simulator(policy, case.source(), case.setting).run()
        return Run.of(case, counts, time.perf_counter() - begun)

    def _policy(self, name: str, num_blocks: int) -> Policy:
        """Return an empty pool."""
        if name in self.engines:
            return tagma.Tagma(tagma.load(self.engines[name]), num_blocks)
        return BASELINES[name](num_blocks)


def run_all(
    cases: Sequence[Case], worker: Worker, jobs: int = 1
) -> Iterator[tuple[Case, Run]]:
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
