# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Range allocator of the tagma KV cache backend (`csrc/tagma/`).

Sizes and indices are in KV blocks. The GIL guards every object: each call holds
it from start to end. On a build without the GIL, guard an allocator and its
`KVRanges` with one lock of your own.
"""

from collections.abc import Iterator, Sequence
from typing import final

class OutOfBlocksError(RuntimeError):
    """Too few blocks are free or cache-only."""

class RangeCapError(RuntimeError):
    """The request would need more than `max_ranges` ranges."""

@final
class KVRanges:
    """The blocks of one request, in order, as ranges.

    Made by `KVAllocator.new_ranges()`. Only `release()` drops its references;
    deleting the object does not.
    """

    @property
    def num_ranges(self) -> int:
        """Number of ranges."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> int:
        """Return the id of a block; O(log ranges). Slices are not supported."""

    def __iter__(self) -> Iterator[int]: ...
    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges as a list of (start, count), both in blocks."""

    def block_ids(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return the ids of the blocks at [start, stop) as a list.

        The bounds are block indices and behave as in a slice.
        """

@final
class KVAllocator:
    """A pool of KV blocks, given out as contiguous ranges.

    A block has any number of request references and at most one cache
    reference. With neither it is free; with the cache reference only, it is
    cache-only and may be evicted.
    """

    def __new__(
        cls, num_blocks: int, alignment: int = 1, max_ranges: int = 256
    ) -> KVAllocator:
        """Make a pool in which every block is free.

        Args:
            num_blocks: Size of the pool; block ids are in [0, num_blocks).
            alignment: What allocated starts and counts are multiples of, in
                blocks. Must divide `num_blocks`.
            max_ranges: Most ranges that a request may have; 0 means no cap.

        """

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the pool."""

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that an allocation can get: free or cache-only.

        With an alignment, only blocks of aligned groups that no request holds.
        """

    @property
    def num_cache_only_blocks(self) -> int:
        """Number of blocks that only the cache holds."""

    @property
    def num_extents(self) -> int:
        """Number of free extents."""

    @property
    def largest_extent(self) -> int:
        """Length of the largest free extent, in blocks."""

    @property
    def max_ranges(self) -> int:
        """Most ranges that a request may have; 0 means no cap."""

    @property
    def alignment(self) -> int:
        """What starts and counts are multiples of, in blocks."""

    def allocate(self, count: int, /) -> tuple[int, int]:
        """Take `count` contiguous blocks and return (start, count), in blocks.

        Each block gets one request reference; drop it with `release_blocks()`.
        `count` is rounded up to the alignment. Evicts cache-only blocks until
        one extent is long enough. May scan the pool: not for the hot path.

        Raises:
            OutOfBlocksError: There is no such stretch; nothing has changed.

        """

    def new_ranges(self) -> KVRanges:
        """Return an empty `KVRanges` for a new request."""

    def extend(self, ranges: KVRanges, count: int, /) -> KVRanges:
        """Append `count` blocks to the request.

        `count` is rounded up to the alignment. The last range grows in place
        where the blocks behind it are free; the rest comes from the largest
        extents. Missing blocks are evicted, least recently used first.

        Returns:
            Just the new blocks, as a view for reading: it holds no references
            and cannot be released or extended.

        Raises:
            OutOfBlocksError: Too few blocks; nothing has changed.
            RangeCapError: Too many ranges; nothing has changed.

        """

    def acquire(self, ranges: KVRanges, block_ids: Sequence[int], /) -> None:
        """Add a request reference to each block and append it to the request.

        Raises:
            ValueError: A block is free; nothing has changed.
            RangeCapError: Too many ranges; nothing has changed.

        """

    def release(self, ranges: KVRanges, /) -> None:
        """Drop the request's reference on each block, last block first.

        Blocks without any reference become free; cached ones become the most
        recently used cache-only blocks. `ranges` is empty afterwards.
        """

    def retain_blocks(self, block_ids: Sequence[int], /) -> None:
        """Add a request reference to each block.

        Raises:
            ValueError: A block is free; nothing has changed.

        """

    def release_blocks(self, block_ids: Sequence[int], /) -> None:
        """Drop a request reference of each block, in the order given.

        Raises:
            ValueError: A block has none left; nothing has changed.

        """

    def cache(self, block_id: int, /) -> None:
        """Set the block's cache reference. A request must hold the block.

        Raises:
            ValueError: No request does, or the block is cached already.

        """

    def uncache(self, block_id: int, /) -> None:
        """Drop the block's cache reference. A cache-only block becomes free.

        Raises:
            ValueError: The block is not cached.

        """

    def is_cached(self, block_id: int, /) -> bool:
        """Return whether the block has its cache reference."""

    def ref_count(self, block_id: int, /) -> int:
        """Return the block's number of request references."""

    def take_evicted(self) -> list[int]:
        """Return the blocks evicted since the last call, in eviction order.

        The list grows until it is taken.
        """

    def check_invariants(self) -> None:
        """Raise RuntimeError for the first broken invariant. Scans the pool."""

    def dump(self) -> bytes:
        """Return all state that later calls depend on, as opaque bytes.

        For tests: equal bytes mean equal state. The order in which extents are
        searched is part of it.
        """
