"""What the probes in the servers recorded."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True)
class Transfer:
    """How the blocks of one transfer lay.

    Args:
        blocks: How many were moved.
        prefill: Runs in the pool of the prefill side.
        decode: Runs in the pool of the decode side.
        both: Stretches that are contiguous on both sides.
    """

    blocks: int
    prefill: int
    decode: int
    both: int


@dataclass(frozen=True)
class Records:
    """Lines of one server's probe."""

    lines: tuple[Mapping[str, Any], ...]

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Those that this server posted."""
        return tuple(Transfer(**line) for line in self.lines if "both" in line)

    @property
    def held_shares(self) -> tuple[float, ...]:
        """The share of the pool that was held when a request gave blocks back.

        Those with one block are our own, which make an idle server take a step.
        """
        return tuple(
            line["held_share"]
            for line in self.lines
            if sum(count for _, count in line.get("released", ())) > 1
        )

    def uses(self) -> Counter[int]:
        """Return how many requests have held each block."""
        return Counter(
            block
            for line in self.lines
            for first, count in line.get("released", ())
            for block in range(first, first + count)
        )


def mean(values: Iterable[float]) -> float:
    """Return the mean, 0 of nothing."""
    found = list(values)
    return fmean(found) if found else 0.0
