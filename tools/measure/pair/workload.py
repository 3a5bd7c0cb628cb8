"""What a pair is asked: conversations that age its pools, then probes."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.measure.greedy import Ask

SEED = 7
BLOCK_SIZE = 32  # the CPU's attention takes multiples of 32 only
PROBES = (512, 2000, 4000, 7900)  # the small model ends at 8,192 tokens

_HEADS, _HEAD_TOKENS = 4, 256
_ACTIVE = 8  # conversations that take turns
_TURN_TOKENS = (100, 600)
_ANSWER_TOKENS = (4, 24)
_CUT_EVERY, _CUT_AFTER, _CUT_TOKENS = 7, 2, 64
_PROBE_ANSWER = 8
_SHORT = 24


@dataclass(frozen=True)
class Size:
    """How much is asked.

    Args:
        conversations: How many; a prefix is shared by a quarter of them.
        turns: Requests of each; every one repeats what came before.
        probes: How often each length is probed.
        blocks: The blocks of each pool.
    """

    conversations: int
    turns: int
    probes: int
    blocks: int
    at_once: int = 6


FULL = Size(conversations=72, turns=3, probes=3, blocks=512)
QUICK = Size(conversations=24, turns=3, probes=2, blocks=320)


@dataclass(frozen=True)
class Workload:
    """All requests, in order.

    Args:
        ageing: Sent first, several at once.
        load: The same kind, sent when the pools have aged.
        probes: Sent one at a time at the end.
    """

    ageing: tuple[Ask, ...]
    load: tuple[Ask, ...]
    probes: tuple[Ask, ...]

    @property
    def asks(self) -> tuple[Ask, ...]:
        """All of them."""
        return self.ageing + self.load + self.probes

    def short(self) -> "Workload":
        """Return its beginning, for what needs no old pools."""
        return Workload((), self.ageing[:_SHORT], self.probes[: len(PROBES)])


def tokens_needed(size: Size) -> int:
    """Return how long a text `make_workload` can need at most."""
    talk = size.conversations * size.turns * _TURN_TOKENS[1]
    return _HEADS * _HEAD_TOKENS + talk + size.probes * sum(PROBES)


def make_workload(text: Sequence[int], size: Size) -> Workload:
    """Cut all requests out of a text.

    Args:
        text: Token ids, at least `tokens_needed` of them.
        size: How much is asked.
    """
    pieces = Pieces(text)
    order = random.Random(SEED)
    heads = [pieces.cut(_HEAD_TOKENS) for _ in range(_HEADS)]
    talk = tuple(_conversations(pieces, heads, size, order))
    probes = [
        Ask(pieces.cut(length), _PROBE_ANSWER)
        for _ in range(size.probes)
        for length in PROBES
    ]
    most = len(talk) * 2 // 3
    return Workload(talk[:most], talk[most:], tuple(probes))


class Pieces:
    """A text from which each piece is taken once."""

    def __init__(self, text: Sequence[int]):
        self._text = text
        self._at = 0

    def cut(self, length: int) -> tuple[int, ...]:
        """Return the next tokens."""
        piece = tuple(self._text[self._at : self._at + length])
        assert len(piece) == length, "the text is too short"
        self._at += length
        return piece


def _conversations(
    pieces: Pieces, heads: Sequence[tuple[int, ...]], size: Size, order: random.Random
) -> Iterator[Ask]:
    """Yield the turns of all conversations, those of a few at a time in mixed order."""
    waiting = size.conversations
    active: list[tuple[tuple[int, ...], int]] = []
    number = 0
    while waiting or active:
        while waiting and len(active) < _ACTIVE:
            active.append((order.choice(heads), size.turns))
            waiting -= 1
        said, left = active.pop(order.randrange(len(active)))
        said += pieces.cut(order.randrange(*_TURN_TOKENS))
        if left > 1:
            active.append((said, left - 1))
        number += 1
        if number % _CUT_EVERY:
            yield Ask(said, order.randrange(*_ANSWER_TOKENS))
        else:
            yield Ask(said, _CUT_TOKENS, _CUT_AFTER)
