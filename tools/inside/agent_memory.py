"""The memory of a pool whose blocks agents move, and what is measured in it."""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NORESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python 3.11 does not name
Runs = Sequence[tuple[int, int, int]]  # source, target, how many blocks
Row = dict[str, float]


@dataclass(frozen=True)
class Task:
    """What is measured.

    Args:
        layers: Regions of each pool.
        block_bytes: Bytes of a block in a region.
        num_blocks: Blocks of a pool.
        rounds: How often each transfer is made.
        cases: By name, the blocks of each side that is compared.
    """

    layers: int
    block_bytes: int
    num_blocks: int
    rounds: int
    cases: Mapping[str, Mapping[str, Runs]]

    def run(self, transfer: Callable[[Runs, bool], Row]) -> list[dict[str, Any]]:
        """Return a row for each round of each side of each case.

        Args:
            transfer: Moves blocks, and checks every byte of them if it is told to.
        """
        rows = []
        for case, sides in self.cases.items():
            for number in range(-1, self.rounds):
                for side in sorted(sides, reverse=bool(number % 2)):
                    row = transfer(sides[side], number < 0)
                    if number >= 0:  # the first one connects
                        rows.append({"case": case, "side": side, **row})
            print("case", flush=True)
        return rows


class Memory:
    """A pool: a region of blocks for each layer, none of them touched yet."""

    def __init__(self, task: Task) -> None:
        self.size = task.layers * task.num_blocks * task.block_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self._map = mmap.mmap(-1, self.size, flags=flags)
        words = np.frombuffer(self._map, dtype=np.uint64)
        self.base = words.ctypes.data
        shape = (task.layers, task.num_blocks, task.block_bytes // 8)
        self._blocks = words.reshape(shape)

    def fill(self, blocks: NDArray[np.int64], is_named: bool) -> None:
        """Write into every word of each block: its name, or zeros."""
        for layer, block, name in self._each(blocks, blocks):
            self._blocks[layer, block] = name if is_named else 0

    def holds(self, blocks: NDArray[np.int64], sources: NDArray[np.int64]) -> bool:
        """Whether each block has every word of its source."""
        return all(
            (self._blocks[layer, block] == name).all()
            for layer, block, name in self._each(blocks, sources)
        )

    def _each(
        self, blocks: NDArray[np.int64], named: NDArray[np.int64]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield layer, block and name of all: one at a time, for want of memory."""
        for layer in range(len(self._blocks)):
            for block, number in zip(blocks.tolist(), named.tolist(), strict=True):
                yield layer, block, (layer << 32) + number + 1

    def give_back(self) -> None:
        """Forget all contents and free their memory."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def descriptors(self, task: Task) -> NDArray[np.uint64]:
        """Return address, bytes and device of each block of each layer, in order."""
        number = np.arange(task.layers * task.num_blocks, dtype=np.uint64)
        made = np.zeros((len(number), 3), dtype=np.uint64)
        made[:, 0] = self.base + number * np.uint64(task.block_bytes)
        made[:, 1] = task.block_bytes
        return made


def blocks_of(runs: Runs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sources and targets, block by block."""
    sources, targets = (
        np.concatenate([np.arange(run[side], run[side] + run[2]) for run in runs])
        for side in (0, 1)
    )
    return sources, targets
