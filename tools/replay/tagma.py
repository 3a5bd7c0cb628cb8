"""The real engine: the extension `vllm.tagma`, allocator and prefix index."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tools.replay.policy import Hit


class EngineRanges:
    """The blocks of a request, as the engine holds them, and their hashes."""

    def __init__(self, ranges: Any, hashes: list[bytes]) -> None:
        self.ranges, self.hashes = ranges, hashes

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return len(self.ranges)

    @property
    def num_runs(self) -> int:
        """How many ranges there are; the engine merges adjacent ones."""
        runs: int = self.ranges.num_ranges
        return runs


class Tagma:
    """The engine, used as the manager uses it: without a cap on ranges."""

    def __init__(self, module: ModuleType, num_blocks: int) -> None:
        self._out_of_blocks: type[Exception] = module.OutOfBlocksError
        self._allocator = module.KVAllocator(num_blocks, max_ranges=0)
        self._index = module.PrefixIndex(self._allocator)
        self.num_evicted = 0

    @property
    def num_free(self) -> int:
        """Blocks that are free or cache-only."""
        free: int = self._allocator.num_free_blocks
        return free

    def look_up(self, hashes: Sequence[int], limit: int) -> Hit:
        """Find the longest cached prefix."""
        keys = [key.to_bytes(8, "little", signed=True) for key in hashes]
        blocks = self._index.match(keys, limit)
        unheld = self._allocator.count_unreferenced(blocks)
        return Hit(len(blocks), unheld, (blocks, keys))

    def admit(self, hit: Hit) -> EngineRanges:
        """Hold the prefix."""
        blocks, keys = hit.state
        ranges = self._allocator.new_ranges()
        self._allocator.acquire(ranges, blocks)
        return EngineRanges(ranges, keys)

    def grow(self, held: EngineRanges, count: int, expected: int = 0) -> bool:
        """Append new blocks."""
        try:
            self._allocator.extend(held.ranges, count, expected)
        except self._out_of_blocks:
            return False
        self.num_evicted += len(self._allocator.take_evicted())
        return True

    def cache(self, held: EngineRanges, start: int, stop: int) -> None:
        """Make blocks known by their hashes."""
        self._index.insert(held.ranges, held.hashes, start, stop)

    def release(self, held: EngineRanges) -> None:
        """Give the blocks back, the last one first."""
        self._allocator.release(held.ranges)
