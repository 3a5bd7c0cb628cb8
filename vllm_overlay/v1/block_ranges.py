# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Block ids as contiguous ranges, which the scheduler sends in place of lists."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import numpy as np

NULL_BLOCK_ID = 0
MAX_BLOCK_ID = 2**31 - 1

# Fewer ids are compressed faster without numpy.
_FEW = 200


class BlockRanges(Sequence[int]):
    """A read-only list of block ids that is stored and pickled as ranges.

    A range is (start, count): the blocks from `start` on, or, if it starts at the
    null block, the null block `count` times. Sliding windows and redirected writes
    make long runs of that one.
    """

    __slots__ = ("ranges", "_len")

    def __init__(self, ranges: Iterable[tuple[int, int]]):
        """Hold the ranges as they are; neighbours need not be merged.

        Raises:
            ValueError: A range is empty or leaves the int32 block ids.

        """
        self.ranges = tuple(ranges)
        self._len = 0
        for start, count in self.ranges:
            if count < 1 or start < 0 or start + count - 1 > MAX_BLOCK_ID:
                raise ValueError(f"not a range of blocks: ({start}, {count})")
            self._len += count

    @classmethod
    def of(cls, block_ids: Sequence[int]) -> "BlockRanges":
        """Return block ids as the fewest ranges.

        Raises:
            ValueError: An id is not an int32 of at least 0.

        """
        if isinstance(block_ids, cls):
            return block_ids
        return cls(_compress(block_ids))

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[int]:
        for start, count in self.ranges:
            yield from _range_ids(start, count)

    def __reversed__(self) -> Iterator[int]:
        return reversed(list(self))

    def __getitem__(self, index):
        if isinstance(index, slice):
            return list(self)[index]
        offset = index + self._len if index < 0 else index
        if offset >= 0:
            for start, count in self.ranges:
                if offset < count:
                    return start and start + offset
                offset -= count
        raise IndexError(f"block index {index} out of range")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other))

    def __reduce__(self):
        return BlockRanges, (self.ranges,)

    def __repr__(self) -> str:
        return f"BlockRanges({list(self.ranges)})"


def _range_ids(start: int, count: int) -> Iterable[int]:
    if start == NULL_BLOCK_ID:
        return repeat(NULL_BLOCK_ID, count)
    return range(start, start + count)


def _compress(block_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the fewest ranges that hold the blocks in their order."""
    if len(block_ids) > _FEW:
        yield from _compress_many(block_ids)
        return
    start = count = 0
    for block_id in block_ids:
        # The null block is followed by itself, others by the next.
        if count and block_id == (start and start + count):
            count += 1
            continue
        if count:
            yield start, count
        start, count = block_id, 1
    if count:
        yield start, count


def _compress_many(block_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    try:
        # Four times as fast as np.array().
        packed = struct.pack(f"{len(block_ids)}i", *block_ids)
    except struct.error as error:
        raise ValueError(f"not a list of block ids: {error}") from None
    ids = np.frombuffer(packed, np.int32)
    follows = np.where(ids[:-1] == NULL_BLOCK_ID, NULL_BLOCK_ID, ids[:-1] + 1)
    begins = np.concatenate(([0], np.flatnonzero(ids[1:] != follows) + 1))
    counts = np.diff(begins, append=len(ids))
    yield from zip(ids[begins].tolist(), counts.tolist())
