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
    """What a scenario is there for; checked on both backends.

    What is moved, shared and gathered, tagma has to show.
    """

    CHUNKED = "the prompt is prefilled in chunks"
    PREFIX_HIT = "the prompt is found in the prefix cache"
    CONCURRENT = "streams run at once"
    PREEMPTED = "requests are preempted while blocks move"
    MOVED = "cached blocks are moved to make room"
    SHARED = "a prefix is extended by two requests at once, so by one elsewhere"
    LOADED = "what was evicted is loaded by a KV connector"
    GATHERED = "the pieces of a prefix hit are put together"


@dataclass(frozen=True)
class Scenario:
    """Requests that are sent at once, or each after the answer to the one before.

    Args:
        name: What to call it.
        prompts: Token ids, one prompt per request.
        max_tokens: How many tokens each request generates.
        claim: What must be seen to happen.
        sampling: Parameters of the requests on top of greedy decoding.
        in_turn: Whether they are sent one after the other.
    """

    name: str
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    claim: Claim | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    in_turn: bool = False

    @property
    def is_determined(self) -> bool:
        """Whether no timing decides what is hit and preempted."""
        return self.in_turn or len(self.prompts) == 1


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
    cut = _pages(pages, tokenize).cut
    long = cut(800)
    shared = long[: 20 * BLOCK_SIZE] + cut(128)
    return (
        Scenario("short prompt", (cut(24),), 24),
        Scenario("long prompt", (long,), 24, Claim.CHUNKED),
        Scenario("the same again", (long,), 24, Claim.PREFIX_HIT),
        Scenario("shared prefix", (shared,), 24, Claim.PREFIX_HIT),
        *_moving(cut),
        Scenario("8 streams", tuple(cut(64) for _ in range(8)), 96, Claim.CONCURRENT),
        Scenario("sampled", (cut(24), cut(24)), 24, sampling=_SAMPLED),
        Scenario("structured output", (cut(24),), 24, sampling=_STRUCTURED),
        _preempting(cut, 8, 120),
    )


def make_short_list(
    pages: Sequence[Path], tokenize: Callable[[str], list[int]]
) -> tuple[Scenario, ...]:
    """Return only scenarios that move blocks; see `make_scenarios`."""
    cut = _pages(pages, tokenize).cut
    return (*_moving(cut), _preempting(cut, 6, 128))


def make_offloaded(
    pages: Sequence[Path], tokenize: Callable[[str], list[int]]
) -> tuple[Scenario, ...]:
    """Return scenarios that move blocks, and load what was evicted meanwhile.

    Args:
        pages: The pages; see `make_scenarios`.
        tokenize: The server's tokenizer.
    """
    cut = _pages(pages, tokenize).cut
    moving = tuple(_moving(cut))
    evicted = moving[0].prompts[:6:2]
    loaded = Scenario("evicted before", evicted, 8, Claim.LOADED, in_turn=True)
    return (*moving, loaded, _preempting(cut, 6, 128))


def _pages(pages: Sequence[Path], tokenize: Callable[[str], list[int]]) -> Pages:
    longest = sorted(pages, key=lambda page: (-page.stat().st_size, page))
    return Pages(iter(longest), tokenize)


def _moving(cut: Callable[[int], tuple[int, ...]]) -> Iterator[Scenario]:
    """Yield scenarios whose blocks have to move if requests are to have one range."""
    # Each leaves nine cached blocks, so six leave only older ones to be evicted.
    prompts = tuple(cut(9 * BLOCK_SIZE + 24) for _ in range(6))
    kept = prompts[1::2]
    yield Scenario("pool filled", (*prompts, *kept), 8, in_turn=True)
    # What is evicted for it lies between what was asked for again.
    room = (cut(24 * BLOCK_SIZE - 8),)
    yield Scenario("room for a long prompt", room, 8, Claim.MOVED)
    yield Scenario("what was moved again", kept, 8, Claim.PREFIX_HIT, in_turn=True)
    prefix = cut(8 * BLOCK_SIZE)
    two = tuple(prefix + cut(4 * BLOCK_SIZE) for _ in range(2))
    yield Scenario("prefix held twice", two, 64, Claim.SHARED)
    longer = tuple(prompt + cut(2 * BLOCK_SIZE) for prompt in two)
    yield Scenario("hits in pieces", longer, 8, Claim.GATHERED, in_turn=True)


def _preempting(
    cut: Callable[[int], tuple[int, ...]], count: int, max_tokens: int
) -> Scenario:
    # Four fit with the 13 blocks of their prompts, not with what they grow to.
    prompts = tuple(cut(400) for _ in range(count))
    return Scenario("pool too small", prompts, max_tokens, Claim.PREEMPTED)
