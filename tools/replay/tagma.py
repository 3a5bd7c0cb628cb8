"""The real engine: the extension `vllm.tagma`, allocator and prefix index."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tools.compile.extension import load
from tools.replay.policy import Hit, Policy, RemovedHashes


@dataclass(frozen=True)
class Engine:
    """A build of the engine, and how much it may move.

    Args:
        file: The extension.
        copy_bound: Blocks that an admission may copy to gather its hit; `math.inf`:
            any number, 0: nothing is ever moved, None: what the build has itself.
    """

    file: Path
    copy_bound: float | None = None

    def pool(self, num_blocks: int) -> "Tagma":
        """Return an empty pool."""
        pool = Tagma(load(self.file), num_blocks)
        if self.copy_bound is not None:
            pool.bound_copies(self.copy_bound)
        return pool


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


class Tagma(Policy):
    """The engine, used as the manager uses it: without a cap on ranges.

    A step's output is processed while the next one runs, as with asynchronous
    scheduling. An engine that moves no block, as
    those up to commit 8af8e8c, knows nothing of steps.
    """

    def __init__(self, module: ModuleType, num_blocks: int) -> None:
        self._out_of_blocks: type[Exception] = module.OutOfBlocksError
        self._allocator = module.KVAllocator(num_blocks, max_ranges=0)
        self._index = module.PrefixIndex(self._allocator, record_evicted=True)
        self._has_steps = hasattr(self._allocator, "begin_step")
        self._step = 0
        self.removed = RemovedHashes()

    def bound_copies(self, copies: float) -> None:
        """Set the bound of an admission's copies; `math.inf` is none."""
        self._allocator.set_copy_bound(None if math.isinf(copies) else int(copies))

    @property
    def num_free(self) -> int:
        """Blocks that are free or cache-only."""
        free: int = self._allocator.num_free_blocks
        return free

    def begin_step(self) -> None:
        """Let the engine count steps."""
        if self._has_steps:
            self._step = self._allocator.begin_step()

    def end_step(self) -> int:
        """Take the step's copies; by then the step before has been processed."""
        if not self._has_steps:
            return 0
        copies = self.take_copies()
        if self._step > 1:
            self._allocator.process_step(self._step - 1)
        return len(copies)

    def take_copies(self) -> list[tuple[int, int]]:
        """Return sources and targets of the step's copies."""
        copies: list[tuple[int, int]] = self._allocator.take_copies()
        return copies

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
        self._allocator.clear_evicted()
        self.removed.note_bytes(b"".join(self._index.take_evicted_hashes()))
        return True

    def cache(self, held: EngineRanges, start: int, stop: int) -> None:
        """Make blocks known by their hashes."""
        self._index.insert(held.ranges, held.hashes, start, stop)

    def release(self, held: EngineRanges) -> None:
        """Give the blocks back, the last one first."""
        self._allocator.release(held.ranges)
