"""Upstream's paged policy, and the preference for contiguous runs proposed for it."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from tools.replay.policy import HashIndex, Hit, Policy, RemovedHashes, ranges_of


class BlockList:
    """The blocks of a request as a list of ids, and all hashes it will have."""

    def __init__(self, blocks: list[int], hashes: Sequence[int]) -> None:
        self.blocks, self.hashes = blocks, hashes
        self.num_runs = sum(1 for _ in ranges_of(blocks))

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return len(self.blocks)

    def extend(self, blocks: Sequence[int]) -> None:
        """Append blocks."""
        last = self.blocks[-1] if self.blocks else None
        self.num_runs += sum(1 for _ in ranges_of(blocks))
        self.num_runs -= last is not None and blocks[0] == last + 1
        self.blocks += blocks


class Paged(Policy):
    """The block pool of vLLM 0.32.0: `BlockPool` and its free queue.

    New blocks come from the front of the queue. Released blocks go, last block of
    the request first, to its front if they have no cached content, and to its end
    if they do, so that the least recently used chain loses its tail first. Blocks
    without content are thus always in front of those with content, and the queue
    is kept as these two parts. The null block is left out.
    """

    def __init__(self, num_blocks: int) -> None:
        self._refs = [0] * num_blocks
        self._index = HashIndex()
        # The queue: `_empty` from its end to its beginning, then `_cached`.
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self.removed = RemovedHashes()

    @property
    def num_free(self) -> int:
        """Length of the queue."""
        return len(self._empty) + len(self._cached)

    def look_up(self, hashes: Sequence[int], limit: int) -> Hit:
        """Find the longest cached prefix."""
        blocks = self._index.match(hashes[:limit])
        unheld = sum(1 for block in blocks if self._refs[block] == 0)
        return Hit(len(blocks), unheld, BlockList(blocks, hashes))

    def admit(self, hit: Hit) -> BlockList:
        """Hold the prefix: `BlockPool.touch`."""
        held: BlockList = hit.state
        for block in held.blocks:
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1
        return held

    def grow(self, held: BlockList, count: int, expected: int = 0) -> bool:
        """Append new blocks: `BlockPool.get_new_blocks`."""
        if count > self.num_free:
            return False
        blocks = self._take(held, count)
        for block in blocks:
            self._refs[block] = 1
        self.removed.note([self._index.remove(b) for b in blocks if b in self._index])
        held.extend(blocks)
        return True

    def cache(self, held: BlockList, start: int, stop: int) -> None:
        """Make blocks known: `BlockPool.cache_full_blocks`."""
        for block, key in zip(
            held.blocks[start:stop], held.hashes[start:stop], strict=True
        ):
            self._index.insert(block, key)

    def release(self, held: BlockList) -> None:
        """Give the blocks back: `BlockPool.free_blocks` of the reversed list."""
        empty = []
        for block in reversed(held.blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if block in self._index:
                    self._cached[block] = None
                else:
                    empty.append(block)
        self._empty += reversed(empty)
        held.blocks.clear()

    def _take(self, held: BlockList, count: int) -> list[int]:
        taken = self._pop_empty(count)
        taken += (
            self._cached.popitem(last=False)[0] for _ in range(count - len(taken))
        )
        return taken

    def _pop_empty(self, count: int) -> list[int]:
        """Take up to `count` blocks without content off the queue's front."""
        if not (count and self._empty):
            return []
        taken = self._empty[-count:]
        del self._empty[-count:]
        taken.reverse()
        return taken


class ContiguousRuns(Paged):
    """Paged with the preference of vLLM pull request 55841.

    What is known of it is its description: the free queue keeps the eviction
    order, and an allocation prefers contiguous runs over the first blocks of the
    queue. How it chooses runs is not in the text that was at hand, so this is a
    generous reading of it: out of a window at the queue's front, four times as
    long as the allocation, the run behind the request's last block comes first,
    then the longest runs, each in ascending order.
    """

    _WINDOW = 4
    _LEAST_WINDOW = 32

    def _take(self, held: BlockList, count: int) -> list[int]:
        size = max(self._WINDOW * count, self._LEAST_WINDOW)
        window = self._pop_empty(size)
        empty = len(window)
        window += islice(self._cached, size - empty)
        taken = self._choose(sorted(window), held, count)
        chosen = set(taken)
        self._empty += (b for b in reversed(window[:empty]) if b not in chosen)
        for block in window[empty:]:
            if block in chosen:
                del self._cached[block]
        return taken

    @staticmethod
    def _choose(window: list[int], held: BlockList, count: int) -> list[int]:
        behind = held.blocks[-1] + 1 if held.blocks else -1
        runs = []
        for start, length in ranges_of(window):
            if start < behind < start + length:
                runs.append((start, behind - start))
                start, length = behind, start + length - behind
            runs.append((start, length))
        runs.sort(key=lambda run: (run[0] != behind, -run[1], run[0]))
        taken: list[int] = []
        for start, length in runs:
            taken += range(start, start + min(length, count - len(taken)))
            if len(taken) == count:
                break
        return taken
