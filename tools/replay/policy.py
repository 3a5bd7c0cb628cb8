"""What a placement policy is, and the prefix index that the baselines share."""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Holding(Protocol):
    """The blocks of one request, in order."""

    @property
    def num_blocks(self) -> int:
        """How many there are."""

    @property
    def num_runs(self) -> int:
        """How many maximal contiguous stretches they form."""


@dataclass(frozen=True)
class Hit:
    """A cached prefix.

    Args:
        num_blocks: Its length.
        num_unheld: How many of its blocks no request holds: taking the prefix
            takes these from what other requests can get.
        state: The policy's own.
    """

    num_blocks: int
    num_unheld: int
    state: Any


class RemovedHashes:
    """Hashes that left the prefix cache, in order: a KV event each."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = hashlib.blake2b(digest_size=8)

    def note(self, keys: Sequence[int]) -> None:
        """Take note of hashes that are removed now."""
        self.note_bytes(struct.pack(f"<{len(keys)}q", *keys))

    def note_bytes(self, keys: bytes) -> None:
        """The same of hashes in eight bytes each, little-endian and signed."""
        self.count += len(keys) // 8
        self._digest.update(keys)

    @property
    def digest(self) -> str:
        """Equal for equal hashes in the same order."""
        return self._digest.hexdigest()


class Policy(Protocol):
    """Gives blocks of a pool to requests, and keeps the content of released ones.

    A policy is deterministic: the same calls give the same placement.

    Attributes:
        removed: What was evicted so far.
    """

    removed: RemovedHashes

    @property
    def num_free(self) -> int:
        """Blocks that requests can get: without content, or with cached content."""

    def begin_step(self) -> None:
        """Take note that the scheduler begins a step."""

    def end_step(self) -> int:
        """Return how many blocks the workers have to copy for the step."""
        return 0

    def look_up(self, hashes: Sequence[int], limit: int) -> Hit:
        """Find the longest cached prefix; changes nothing.

        Args:
            hashes: Of a request's blocks.
            limit: The most blocks to find.
        """

    def admit(self, hit: Hit) -> Holding:
        """Hold the prefix for the request whose hashes were looked up.

        Nothing may have changed since.
        """

    def grow(self, held: Any, count: int, expected: int = 0) -> bool:
        """Append `count` new blocks; False: too few are left, nothing changed.

        `expected` more are sure to follow, as for a prompt's later chunks.
        """

    def cache(self, held: Any, start: int, stop: int) -> None:
        """Make the blocks at [start, stop) known by their hashes."""

    def release(self, held: Any) -> None:
        """Give the blocks back; cached content stays until it is evicted."""


class HashIndex:
    """Hashes of cached blocks, as upstream's `BlockHashToBlockMap` keeps them.

    Several blocks can have one hash, when requests compute the same content at
    once; the first of them is found.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, int | dict[int, None]] = {}
        self._hashes: dict[int, int] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._hashes

    def match(self, hashes: Iterable[int]) -> list[int]:
        """Return the blocks of the longest known prefix."""
        found = []
        for key in hashes:
            block = self._blocks.get(key)
            if block is None:
                break
            found.append(next(iter(block)) if isinstance(block, dict) else block)
        return found

    def insert(self, block: int, key: int) -> None:
        """Make a block known by its hash."""
        self._hashes[block] = key
        other = self._blocks.setdefault(key, block)
        if isinstance(other, dict):
            other[block] = None
        elif other != block:
            self._blocks[key] = {other: None, block: None}

    def remove(self, block: int) -> int:
        """Forget a block and return its hash."""
        key = self._hashes.pop(block)
        blocks = self._blocks[key]
        if isinstance(blocks, dict) and len(blocks) > 1:
            del blocks[block]
        else:
            del self._blocks[key]
        return key


def ranges_of(blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the maximal ascending stretches as (start, count).

    >>> list(ranges_of([4, 5, 6, 9, 1, 2]))
    [(4, 3), (9, 1), (1, 2)]
    """
    start = count = 0
    for block in blocks:
        if count and block == start + count:
            count += 1
        else:
            if count:
                yield start, count
            start, count = block, 1
    if count:
        yield start, count
