"""What a server with LMCache is asked: rounds of requests, one after the other."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tools.inside.small_model import VOCABULARY
from tools.measure.greedy import Ask

SEED = 7
BLOCK_SIZE, BLOCKS = 32, 40
CHUNK_TOKENS = 64  # What LMCache stores at once.
MAX_TOKENS = 768

_SHARED_TOKENS, _OWN_TOKENS, _ANSWER = 200, 70, 8
_PROMPTS = 4


@dataclass(frozen=True)
class Round:
    """Requests that are compared together.

    Args:
        name: What to call it.
        asks: The requests.
        at_once: How many run at the same time. With one, what is found in LMCache
            does not depend on time.
        resets: The server forgets its prefix cache first.
    """

    name: str
    asks: tuple[Ask, ...]
    at_once: int = 1
    resets: bool = False

    @property
    def is_serial(self) -> bool:
        """Whether the requests run one at a time."""
        return self.at_once == 1


class Prompts:
    """Random prompts, drawn in a seeded order."""

    def __init__(self) -> None:
        self._order = random.Random(SEED)
        self._shared = self._draw(_SHARED_TOKENS)

    def _draw(self, length: int) -> tuple[int, ...]:
        return tuple(self._order.randrange(3, VOCABULARY) for _ in range(length))

    def sharing(self, count: int) -> tuple[Ask, ...]:
        """Return prompts with a common prefix."""
        return tuple(
            Ask(self._shared + self._draw(_OWN_TOKENS + index), _ANSWER)
            for index in range(count)
        )

    def single(self, count: int, length: int, answer: int) -> tuple[Ask, ...]:
        """Return prompts that have nothing in common."""
        return tuple(Ask(self._draw(length), answer) for _ in range(count))


def serial_rounds(prompts: Prompts) -> Iterator[Round]:
    """Yield rounds in which one request runs at a time."""
    asks = prompts.sharing(_PROMPTS)
    yield Round("cold", asks)
    yield Round("warm", asks)
    yield Round("others", prompts.single(6, 200, 12))
    yield Round("after others", asks)
    yield Round("after a reset", asks, resets=True)
    long = prompts.single(2, 600, 24)
    yield Round("long", long)
    yield Round("long, after a reset", long, resets=True)


def crowded_rounds(prompts: Prompts) -> Iterator[Round]:
    """Yield rounds in which requests compete for blocks, and some are aborted."""
    crowd = prompts.single(9, 120, 60)
    yield Round("preempted", crowd, at_once=9)
    yield Round("preempted, after a reset", crowd, at_once=9, resets=True)
    leaving = tuple(
        Ask(ask.prompt, 40, cut=2 if index % 2 else None)
        for index, ask in enumerate(prompts.sharing(8) + prompts.single(4, 130, 8))
    )
    yield Round("aborted", leaving, at_once=6)
    yield Round("aborted, after a reset", leaving, at_once=6, resets=True)


def make_rounds() -> tuple[Round, ...]:
    """Return all rounds, those with one request at a time first."""
    prompts = Prompts()
    return (*serial_rounds(prompts), *crowded_rounds(prompts))
