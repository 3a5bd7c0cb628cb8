"""What one backend did in one scenario."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One streamed answer; times are seconds since the scenario began."""

    tokens: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    first_s: float
    end_s: float


@dataclass(frozen=True)
class HeldBlocks:
    """How a request held its blocks when it gave them back; the probe says it."""

    request: str
    blocks: int
    runs: int


@dataclass(frozen=True)
class CopyingStep:
    """A step that told the workers to copy blocks; the probe says it.

    Args:
        copies: Blocks copied.
        steps_under_way: Earlier steps whose results were not there when this one was
            scheduled; more than 0 only with asynchronous scheduling.
    """

    copies: int
    steps_under_way: int


@dataclass(frozen=True)
class Recorded:
    """What the probe recorded in one scenario."""

    held: tuple[HeldBlocks, ...]
    steps: tuple[CopyingStep, ...]


@dataclass(frozen=True)
class Measured:
    """What one backend did in one scenario.

    Args:
        replies: The answers.
        recorded: What the probe saw.
        preemptions: Of requests, as /metrics counts them.
        loaded_tokens: Of prompts, by a KV connector, as /metrics counts them.
        block_copies: Of blocks that moved, as /metrics counts them.
        seconds: How long the scenario took.
    """

    replies: tuple[Reply, ...]
    recorded: Recorded
    preemptions: int
    loaded_tokens: int
    block_copies: int
    seconds: float

    @property
    def held(self) -> tuple[HeldBlocks, ...]:
        """How the requests held their blocks."""
        return self.recorded.held

    @property
    def copies_ahead(self) -> int:
        """Blocks copied by steps that were scheduled while another was under way."""
        return sum(s.copies for s in self.recorded.steps if s.steps_under_way)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache supplied."""
        return sum(reply.cached_tokens for reply in self.replies)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens over the time of the whole scenario."""
        return sum(len(reply.tokens) for reply in self.replies) / self.seconds

    @property
    def mean_runs(self) -> float:
        """Mean number of runs over all releases of a request's blocks."""
        return sum(held.runs for held in self.held) / max(len(self.held), 1)

    @property
    def max_runs(self) -> int:
        """The largest number of runs at a release."""
        return max((held.runs for held in self.held), default=0)

    @property
    def most_at_once(self) -> int:
        """How many requests were generating at the same time, at most."""
        return max(
            sum(other.first_s <= reply.first_s < other.end_s for other in self.replies)
            for reply in self.replies
        )

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return asdict(self) | {
            "copies_ahead": self.copies_ahead,
            "cached_tokens": self.cached_tokens,
            "tokens_per_s": round(self.tokens_per_s, 2),
            "mean_runs": round(self.mean_runs, 2),
            "max_runs": self.max_runs,
            "most_at_once": self.most_at_once,
        }
