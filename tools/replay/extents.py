"""What classic placement in free extents has in common; `fit` and `buddy` derive.

All evict least recently used blocks until enough are free, and grow in place where
they can. When no extent fits, the largest ones are taken.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

from tools.replay.policy import HashIndex, Hit, Policy, RemovedHashes, ranges_of


class RangeList:
    """The blocks of a request as ranges, and all hashes it will have.

    `room` are the blocks behind the last range that are set aside for growth.
    """

    def __init__(self, blocks: list[int], hashes: Sequence[int]) -> None:
        self.ranges = list(ranges_of(blocks))
        self.num_blocks = len(blocks)
        self.hashes = hashes
        self.room = 0

    @property
    def num_runs(self) -> int:
        """How many ranges there are; adjacent ones are merged."""
        return len(self.ranges)

    @property
    def end(self) -> int:
        """The block behind the last one; -1 for no blocks."""
        return sum(self.ranges[-1]) if self.ranges else -1

    def append(self, start: int, count: int) -> None:
        """Append blocks."""
        self.num_blocks += count
        if start == self.end:
            start, last = self.ranges.pop()
            count += last
        self.ranges.append((start, count))

    def blocks_from(self, index: int) -> list[int]:
        """Return the blocks from an index on."""
        left = self.num_blocks - index
        found: list[int] = []
        for start, count in reversed(self.ranges):
            if left <= 0:
                break
            taken = min(left, count)
            found += range(start + count - 1, start + count - taken - 1, -1)
            left -= taken
        found.reverse()
        return found


class ExtentPolicy(Policy, ABC):
    """References, prefix cache and its eviction; where blocks go is left open."""

    def __init__(self, num_blocks: int) -> None:
        self._refs = [0] * num_blocks
        self._index = HashIndex()
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._num_empty = 0
        self.removed = RemovedHashes()
        self._put(0, num_blocks)

    @abstractmethod
    def _insert(self, start: int, count: int) -> None:
        """Take in free blocks."""

    @abstractmethod
    def _place(self, held: RangeList, count: int) -> list[tuple[int, int]]:
        """Take `count` blocks, which are there, and return them in order."""

    @property
    def num_free(self) -> int:
        """Blocks that no request holds or has set aside."""
        return self._num_empty + len(self._cached)

    def look_up(self, hashes: Sequence[int], limit: int) -> Hit:
        """Find the longest cached prefix."""
        blocks = self._index.match(hashes[:limit])
        unheld = sum(1 for block in blocks if self._refs[block] == 0)
        return Hit(len(blocks), unheld, RangeList(blocks, hashes))

    def admit(self, hit: Hit) -> RangeList:
        """Hold the prefix."""
        held: RangeList = hit.state
        for block in held.blocks_from(0):
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1
        return held

    def grow(self, held: RangeList, count: int, expected: int = 0) -> bool:
        """Append new blocks."""
        inside = min(count, held.room)
        outside = count - inside
        if outside > self.num_free:
            return False
        if inside:
            held.room -= inside
            self._hold(held, held.end, inside)
        if outside:
            self._evict(outside - self._num_empty)
            for start, length in self._place(held, outside):
                self._hold(held, start, length)
        return True

    def cache(self, held: RangeList, start: int, stop: int) -> None:
        """Make blocks known by their hashes."""
        blocks = held.blocks_from(start)
        for block, key in zip(blocks, held.hashes[start:stop], strict=False):
            self._index.insert(block, key)

    def release(self, held: RangeList) -> None:
        """Give the blocks back, the last one first."""
        if held.room:
            self._put(held.end, held.room)
        for start, count in reversed(held.ranges):
            end = start + count  # of the free blocks that end here
            for block in range(start + count - 1, start - 1, -1):
                self._refs[block] -= 1
                if self._refs[block] == 0 and block not in self._index:
                    continue
                if self._refs[block] == 0:
                    self._cached[block] = None
                self._put(block + 1, end - block - 1)
                end = block
            self._put(start, end - start)
        held.ranges.clear()
        held.room = held.num_blocks = 0

    def _hold(self, held: RangeList, start: int, count: int) -> None:
        self._refs[start : start + count] = [1] * count
        held.append(start, count)

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block, _ = self._cached.popitem(last=False)
            self.removed.note([self._index.remove(block)])
            self._put(block, 1)

    def _put(self, start: int, count: int) -> None:
        if count:
            self._num_empty += count
            self._insert(start, count)
