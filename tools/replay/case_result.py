"""What one run of a case measured."""

from dataclasses import dataclass

from tools.replay.case import Case
from tools.replay.counts import Counts, mean, percentile


@dataclass(frozen=True)
class CaseResult:
    """What one run measured. Counts are as in `counts.Counts`.

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
        copies_per_block: Blocks copied for each that was allocated.
        step_copies_mean: Blocks copied in a step.
        step_copies_p99: Their 99th percentile.
        step_copies_max: The most.
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
    removed: str
    copies_per_block: float
    step_copies_mean: float
    step_copies_p99: int
    step_copies_max: int
    over_cap_requests: int
    preemptions: int
    admissions: int
    seconds: float

    @classmethod
    def of(cls, case: Case, counts: Counts, seconds: float) -> "CaseResult":
        """Summarise what a case's run counted."""
        num_blocks = case.setting.num_blocks
        copies = sum(size * n for size, n in counts.step_copies.items())
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
            removed=counts.removed,
            copies_per_block=copies / max(1, counts.allocated_blocks),
            step_copies_mean=mean(counts.step_copies),
            step_copies_p99=percentile(counts.step_copies, 0.99),
            step_copies_max=max(counts.step_copies, default=0),
            over_cap_requests=counts.over_cap_requests,
            preemptions=counts.preemptions,
            admissions=counts.admissions,
            seconds=seconds,
        )
