"""Synthetic workloads: what the lengths of requests are drawn from."""

import math
import random
from dataclasses import dataclass
from functools import cached_property

_SAMPLES = 4000


@dataclass(frozen=True)
class LogNormal:
    """A length in tokens: its median, and the deviation of its logarithm."""

    median: float
    sigma: float
    most: int

    def draw(self, rng: random.Random) -> int:
        """Return a length of at least one token."""
        length = int(rng.lognormvariate(math.log(self.median), self.sigma))
        return max(1, min(self.most, length))

    @cached_property
    def mean(self) -> float:
        """The mean of many draws, always the same."""
        rng = random.Random(0)
        return sum(self.draw(rng) for _ in range(_SAMPLES)) / _SAMPLES


@dataclass(frozen=True)
class Workload:
    """What requests look like.

    Args:
        name: What to call it.
        prompt: The first prompt of a session.
        follow_up: What the user adds at each further turn; only with a prefix
            cache, without one every request is a session of its own.
        output: The answer.
    """

    name: str
    prompt: LogNormal
    follow_up: LogNormal
    output: LogNormal


_FOLLOW_UP = LogNormal(256, 1.0, 16384)
WORKLOADS = (
    Workload("chat", LogNormal(512, 1.0, 16384), _FOLLOW_UP, LogNormal(256, 0.9, 8192)),
    Workload(
        "long context",
        LogNormal(8192, 1.0, 131072),
        _FOLLOW_UP,
        LogNormal(512, 0.8, 65536),
    ),
    Workload(
        "reasoning",
        LogNormal(256, 0.8, 32768),
        _FOLLOW_UP,
        LogNormal(2048, 0.8, 16384),
    ),
)
