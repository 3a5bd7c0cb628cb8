"""What the servers are asked: requests, and the pool that they compete for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tools.base.errors import ToolError
from tools.base.outcome import Outcome

# One small pool for all scenarios: a server takes longer to start than to answer.
BLOCK_SIZE = 32  # the CPU's attention takes multiples of 32 only
BLOCKS = 64  # one of them is the null block
MODEL_TOKENS = 1024
BATCHED_TOKENS = 256

_SAMPLED = {"temperature": 1, "top_p": 0.9, "top_k": 20, "seed": 1}
_STRUCTURED = {
    "structured_outputs": {"choice": ["paged", "tagma"]},
    "ignore_eos": False,
}


class Claim(Enum):
    """What a scenario is there for; checked on both backends."""

    CHUNKED = "the prompt is prefilled in chunks"
    PREFIX_HIT = "the prompt is found in the prefix cache"
    CONCURRENT = "streams run at once"
    PREEMPTED = "requests are preempted"


@dataclass(frozen=True)
class Scenario:
    """Requests that are sent at once.

    Args:
        name: What to call it.
        prompts: Token ids, one prompt per request.
        max_tokens: How many tokens each request generates.
        claim: What must be seen to happen.
        sampling: Parameters of the requests on top of greedy decoding.
    """

    name: str
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    claim: Claim | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pages:
    """The documentation, from which each prompt takes a page of its own.

    Args:
        longest: The pages, the longest first.
        tokenize: The server's tokenizer.
    """

    longest: Iterator[Path]
    tokenize: Callable[[str], list[int]]

    def cut(self, length: int) -> tuple[int, ...]:
        """Return so many tokens of the next page.

        Raises:
            ToolError: There is no further page as long as that.
        """
        page = next(self.longest, None)
        text = page.read_text("utf-8")[: 12 * length] if page else ""
        tokens = tuple(self.tokenize(text)[:length])
        if len(tokens) < length:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                f"the documentation has no further page of {length} tokens",
                ("Make the tree: python -m tools apply",),
            )
        return tokens


def make_scenarios(
    pages: Sequence[Path], tokenize: Callable[[str], list[int]]
) -> tuple[Scenario, ...]:
    """Cut the prompts of all scenarios out of documentation pages.

    Args:
        pages: The pages; the longest are used, one per prompt.
        tokenize: The server's tokenizer.

    Raises:
        ToolError: There are too few long pages.
    """
    longest = sorted(pages, key=lambda page: (-page.stat().st_size, page))
    cut = Pages(iter(longest), tokenize).cut
    long = cut(800)
    shared = long[: 20 * BLOCK_SIZE] + cut(128)
    return (
        Scenario("short prompt", (cut(24),), 24),
        Scenario("long prompt", (long,), 24, Claim.CHUNKED),
        Scenario("the same again", (long,), 24, Claim.PREFIX_HIT),
        Scenario("shared prefix", (shared,), 24, Claim.PREFIX_HIT),
        Scenario("8 streams", tuple(cut(64) for _ in range(8)), 96, Claim.CONCURRENT),
        Scenario("sampled", (cut(24), cut(24)), 24, sampling=_SAMPLED),
        Scenario("structured output", (cut(24),), 24, sampling=_STRUCTURED),
        # Four fit with the 13 blocks of their prompts, not with their last 17.
        Scenario(
            "pool too small", tuple(cut(400) for _ in range(8)), 120, Claim.PREEMPTED
        ),
    )
