"""What a simulation counts, and how counted values are summarised."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

RANGE_CAP = 256  # ranges in a request's row of the device's range table


@dataclass
class Counts:
    """What was measured.

    Args:
        runs: Runs of a request when it gave its blocks back, and how often.
        live_runs: The same of the requests that decoded, sampled over time.
        admissions: Requests admitted for the first time.
        preemptions: Requests that lost their blocks and were admitted again.
        prompt_tokens: Of first admissions.
        hit_tokens: How many of them came from the prefix cache.
        evicted_blocks: Blocks whose cached content was lost.
        removed: Digest of their hashes in order, from the first step on.
        allocated_blocks: New blocks that requests got.
        step_copies: Blocks copied in a step, and how often.
        over_cap_requests: Requests that came to have more than `RANGE_CAP` runs.
        live_blocks: Blocks held, summed over the samples.
        samples: How many samples there were.
    """

    runs: Counter[int] = field(default_factory=Counter)
    live_runs: Counter[int] = field(default_factory=Counter)
    admissions: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    evicted_blocks: int = 0
    removed: str = ""
    allocated_blocks: int = 0
    step_copies: Counter[int] = field(default_factory=Counter)
    over_cap_requests: int = 0
    live_blocks: int = 0
    samples: int = 0


def mean(counts: Mapping[int, int]) -> float:
    """Return the mean of counted values; 0 if there are none."""
    total = sum(counts.values())
    return sum(value * n for value, n in counts.items()) / total if total else 0.0


def percentile(counts: Mapping[int, int], share: float) -> int:
    """Return the smallest value with `share` of the values at or below it."""
    left = share * sum(counts.values())
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return 0
