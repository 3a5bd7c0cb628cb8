# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Range allocator and prefix index of the tagma KV cache backend (`csrc/tagma/`).

Sizes and indices are in KV blocks. The GIL guards every object: each call holds
it from start to end. On a build without the GIL, guard an allocator, its
`KVRanges` and its `PrefixIndex` with one lock of your own.

Where block ids are passed, a `KVRanges` of the same allocator, an int32 buffer
(such as `array.array("i")` or a NumPy array) or a sequence of integers will do.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

BlockIds: TypeAlias = KVRanges | array[int] | memoryview | Sequence[int]

class OutOfBlocksError(RuntimeError):
    """Too few blocks are free or cache-only."""

class RangeCapError(RuntimeError):
    """The request would need more than `max_ranges` ranges."""

@final
class KVRanges:
    """The blocks of one request, in order, as ranges.

    Made by `KVAllocator.new_ranges()`. Only `release()` drops its references;
    deleting the object does not. A view, which `extend()`, `match()` and
    `part()` return, has none. An index gives a block's id, in O(log ranges);
    slices are not supported.
    """

    @property
    def num_ranges(self) -> int:
        """Number of ranges."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges as a list of (start, count), both in blocks."""

    def part(self, start: int | None, stop: int | None, /) -> KVRanges:
        """Return the blocks at [start, stop) as a view that holds no references.

        The bounds are block indices and behave as in a slice.
        """

    def block_ids(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return the ids of the blocks at [start, stop) as a list.

        The bounds are block indices and behave as in a slice.
        """

    def block_ids_into(
        self, buffer: Any, start: int = 0, stop: int | None = None
    ) -> int:
        """Write the ids of the blocks at [start, stop) into an int32 buffer.

        Fills it from its begin. The bounds are block indices and behave as in a
        slice.

        Returns:
            How many ids were written.

        Raises:
            TypeError: `buffer` is not a writable, contiguous, one-dimensional
                buffer of int32.
            ValueError: The buffer is too short; nothing was written.

        """

@final
class KVAllocator:
    """A pool of KV blocks, given out as contiguous ranges.

    A block has a request reference for each list that it is in, which are
    counted to 2**31 - 1, and at most one cache reference. With neither it is
    free; with the cache reference only, it is cache-only and may be evicted. At
    first every block is free.

    Args:
        num_blocks: Size of the pool; block ids are in [0, num_blocks).
        max_ranges: Most ranges that a request may have; 0 means no cap.

    """

    def __new__(cls, num_blocks: int, max_ranges: int = 256) -> KVAllocator: ...
    @property
    def num_blocks(self) -> int:
        """Number of blocks in the pool."""

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that an allocation can get: free or cache-only."""

    @property
    def num_cache_only_blocks(self) -> int:
        """Number of blocks that only the cache holds."""

    @property
    def num_extents(self) -> int:
        """Number of free extents."""

    @property
    def largest_extent(self) -> int:
        """Length of the largest free extent, in blocks.

        If more than 64 are about as long, it may be one that is up to 1/32
        shorter.
        """

    @property
    def max_ranges(self) -> int:
        """Most ranges that a request may have; 0 means no cap."""

    @property
    def copy_bound(self) -> int | None:
        """Most copies of an admission, or None. See `set_copy_bound()`."""

    @property
    def copies_left(self) -> int | None:
        """Copies that are left for the step's further admissions, or None."""

    def allocate(self, count: int, /) -> tuple[int, int]:
        """Take `count` contiguous blocks and return (start, count), in blocks.

        Each block gets one request reference; drop it with `release_blocks()`.
        What is cached there is moved.

        Raises:
            OutOfBlocksError: There is no such stretch; nothing has changed.

        """

    def new_ranges(self) -> KVRanges:
        """Return an empty `KVRanges` for a new request."""

    def extend(self, ranges: KVRanges, count: int, expected: int = 0, /) -> KVRanges:
        """Append `count` blocks to the request.

        `expected` more are sure to follow, as for a prompt's later chunks: room
        for them is wanted behind these.

        As many blocks leave the cache as upstream's queue would give away, in
        its order. The last range grows in place where no request holds the
        blocks behind it; else the blocks come from where least is lost. What is
        still cached there is moved to where blocks have left the cache.

        The first call takes what was acquired for the request's prefix, whose
        pieces it may move together if nobody else holds them: read the ids
        afterwards.

        Returns:
            Just the new blocks, as a view for reading: it holds no references
            and cannot be released or extended.

        Raises:
            OutOfBlocksError: Too few blocks; nothing has changed.
            RangeCapError: Too many ranges; nothing has changed.

        """

    def grow(self, ranges: KVRanges, count: int, /) -> int:
        """Do as `extend()` does, without a view: for the hot path.

        Returns:
            The number of ranges added; 0 means that the request grew in place.

        """

    def stats(self) -> dict[str, Any]:
        """Return what operators watch, in blocks unless said otherwise.

        O(1).

        Returns:
            Now: `free_blocks`, `held_blocks` and `cache_only_blocks`, `extents`
            (number of free ones), `largest_extent`, `requests` (number with
            ranges) and `ranges_per_request` (number of requests by their number
            of ranges: "1", "2", "3-4" to "129-256", ">256"). Since the pool was
            made: `spills` (growths that needed a further range),
            `evicted_blocks`, `kept_blocks` (moved, and so still cached),
            `block_copies` (that `take_copies()` returned), `cap_events` (calls that
            failed for `max_ranges`).

        """

    def acquire(self, ranges: KVRanges, block_ids: BlockIds, /) -> None:
        """Add a request reference to each block and append it to the request.

        Raises:
            ValueError: A block is free; nothing has changed.
            OverflowError: A block has 2**31 - 1; nothing has changed.
            RangeCapError: Too many ranges; nothing has changed.

        """

    def release(self, ranges: KVRanges, /) -> None:
        """Drop the request's reference on each block, last block first.

        Blocks without any reference become free; cached ones become the most
        recently used cache-only blocks. `ranges` is empty afterwards.
        """

    def retain_blocks(self, block_ids: BlockIds, /) -> None:
        """Add a request reference to each block, also to a free one.

        Raises:
            ValueError: A block is outside the pool; nothing has changed.
            OverflowError: A block has 2**31 - 1; nothing has changed.

        """

    def release_blocks(self, block_ids: BlockIds, /) -> None:
        """Drop a request reference of each block, in the order given.

        Raises:
            ValueError: A block has none left; nothing has changed.

        """

    def cache(self, block_id: int, /) -> None:
        """Set the block's cache reference. A request must hold the block.

        Raises:
            ValueError: No request does, the block is cached already, or the
                pool has a `PrefixIndex`, whose `insert()` does it.

        """

    def cache_blocks(self, block_ids: BlockIds, /) -> None:
        """Set the cache reference of each block, as `cache()` does.

        Raises:
            ValueError: A block is not held or is cached; nothing has changed.

        """

    def count_unreferenced(self, block_ids: BlockIds, /) -> int:
        """Return how many of the blocks no request holds.

        Acquiring them takes as many from `num_free_blocks`.
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

    def clear_evicted(self) -> None:
        """Do as `take_evicted()` does, without making the list."""

    def begin_step(self) -> int:
        """Tell that a step is being scheduled and return its number, from 1 on."""

    def process_step(self, step: int, /) -> None:
        """Tell that the workers have done a step and all before it.

        Blocks whose hashes it set may be moved from now on.

        Raises:
            ValueError: The step has not begun, or a later one was processed.

        """

    def take_copies(self) -> list[tuple[int, int]]:
        """Return the copies that the step's moves come to, as (source, target).

        The workers make them before anything else of the step. They read all
        sources before they write any target, or make the copies in this order:
        each block is written after it has been read, but for cycles, which come
        last. A block is the target of one copy at most.
        """

    def record_moves(self, record: bool, /) -> None:
        """Keep moves for `take_moves()`, or stop that."""

    def take_moves(self) -> list[tuple[int, int]]:
        """Return the moves recorded since the last call, as (from, to), in order.

        By the ids that blocks had then; `num_blocks` stands for a place where a
        content waited. The list grows until it is taken.
        """

    def set_copy_bound(self, copies: int | None, /) -> None:
        """Bound the copies that an admission may make; None means no bound.

        Those of a step make nearly half as many more at most. With 0 no block is ever
        moved: a request gets the blocks that have left the cache.

        Raises:
            ValueError: The bound is negative.

        """

    def keep_copies_from_freed(self, keep: bool, /) -> None:
        """Keep copies out of blocks given back since the last processed step.

        For a connector that reads them still, and is not told of copies.
        """

    def source_of(self, block_id: int, /) -> int:
        """Return where the block's content is until the step's copies are made."""

    def free_blocks(self, after: int | None, limit: int, /) -> list[int]:
        """Return free blocks in the order of eviction, `limit` at most.

        Ids stand for the empty ones, too: each place that one has in the order is
        given one of them, anew at each call.

        Args:
            after: The block that they come behind, or None for the first ones. Nothing
                comes behind a block that a request holds.
            limit: Most blocks to return.

        Raises:
            ValueError: `after` is no block of the pool.

        """

    def free_queue(self) -> list[int]:
        """Return the blocks that no request holds, the next to be given away first.

        For tests: -1 stands for an empty one, since any will do.
        """

    def check_invariants(self) -> None:
        """Raise RuntimeError for the first broken invariant. Scans the pool."""

    def dump(self) -> bytes:
        """Return all state that later calls depend on, as opaque bytes.

        For tests: equal bytes mean equal state. The order in which extents are
        searched is part of it.
        """

@final
class PrefixIndex:
    """The cached blocks of a `KVAllocator`, by block hash.

    A hash is any bytes; up to 40 bytes cost no memory of their own. A block has
    its cache reference exactly while it has an entry here: the allocator's
    evictions remove both at once. The length is the number of these blocks.

    Hashes are looked up by SipHash-1-3 with a secret of the process, as Python's
    own are: random, or from `PYTHONHASHSEED` where that is set to a number. Who
    does not know it cannot make up prompts whose look-ups are slow.

    Args:
        allocator: Has one index at most. Its pool must have no cached block
            yet. It keeps the index for as long as it lives itself.
        record_evicted: Keep evicted hashes for `take_evicted_hashes()`.

    """

    def __new__(
        cls, allocator: KVAllocator, record_evicted: bool = False
    ) -> PrefixIndex: ...
    def __len__(self) -> int: ...
    @property
    def num_hashes(self) -> int:
        """Number of different hashes that blocks are cached under."""

    def match(self, hashes: Sequence[bytes], limit: int | None = None) -> KVRanges:
        """Return the blocks of the longest prefix whose hashes are all cached.

        Looks at `limit` hashes at most. Of several blocks with one hash, the
        first inserted is taken.

        Returns:
            A view that holds no reference: pass it to `KVAllocator.acquire()`
            before anything else is allocated.

        """

    def insert(
        self, ranges: KVRanges, hashes: Sequence[bytes], start: int, stop: int, /
    ) -> int:
        """Cache the request's blocks at [start, stop) under hashes[start:stop].

        Each gets its cache reference and its entry. A block that is cached
        under the same hash is skipped; one under another hash moves to the new
        one.

        Returns:
            How many of the blocks were not cached before.

        Raises:
            ValueError: The bounds do not fit `ranges` and `hashes`, or no
                request holds one of the blocks; nothing has changed.

        """

    def erase(self, block_id: int, /) -> None:
        """Drop the block's entry and cache reference.

        Raises:
            ValueError: The block is not cached.

        """

    def evict(self, block_ids: BlockIds, /) -> None:
        """Drop the entry and cache reference of each block that has them."""

    def clear(self) -> None:
        """Drop every entry and cache reference. Scans the pool."""

    def find(self, hash: bytes, /) -> int | None:
        """Return the block inserted first under the hash, or None."""

    def count_probes(self, hash: bytes, /) -> int:
        """Return how many cached hashes a look-up of the hash is compared with.

        For tests: what it costs, without a clock.
        """

    def hash_of(self, block_id: int, /) -> bytes | None:
        """Return the hash that the block is cached under, or None."""

    def position_of(self, block_id: int, /) -> int | None:
        """Return the index in `ranges` that the block was inserted at, or None."""

    def take_evicted_hashes(self) -> list[bytes]:
        """Return the hashes of the blocks evicted since the last call, in order.

        One for each block of `KVAllocator.take_evicted()`. The list grows until
        it is taken.

        Raises:
            RuntimeError: The index was made without `record_evicted`.

        """

@final
class CoordMap:
    """Where a token's KV data lies in one buffer that holds all layers.

    Args:
        num_layers: Number of layers.
        num_blocks: Number of blocks in each layer.
        block_size: Number of tokens in a block.
        bytes_per_token: Size of a token's KV data in one layer, in bytes.

    Raises:
        ValueError: One is below 1, or the size in bytes, the product of all
            four, is 2**63 or more.

    """

    def __new__(
        cls, num_layers: int, num_blocks: int, block_size: int, bytes_per_token: int
    ) -> CoordMap: ...
    def index(self, layer: int, block: int, token: int, /) -> int:
        """Return (layer * num_blocks + block) * block_size + token, in tokens.

        Raises:
            IndexError: A coordinate is outside its bound.

        """

    def offset(self, layer: int, block: int, token: int, /) -> int:
        """Return the token's offset in the buffer: its index in bytes.

        Raises:
            IndexError: A coordinate is outside its bound.

        """

    def coords(self, index: int, /) -> tuple[int, int, int]:
        """Return the (layer, block, token) whose `index()` is `index`.

        Raises:
            IndexError: The index is outside the map.

        """
