// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// What help() shows of module `vllm.tagma`: the signatures and texts of the
// stub `tagma.pyi`, in its order. tests/v1/core/test_tagma_stub.py compares the
// two.

#pragma once

namespace vllm::tagma::bindings::doc {

inline constexpr char kModule[] =
    R"(Range allocator and prefix index of the tagma KV cache backend (`csrc/tagma/`).

Sizes and indices are in KV blocks. The GIL guards every object: each call holds
it from start to end. On a build without the GIL, guard an allocator, its
`KVRanges` and its `PrefixIndex` with one lock of your own.

Where block ids are passed, a `KVRanges` of the same allocator, an int32 buffer
(such as `array.array("i")` or a NumPy array) or a sequence of integers will do.)";

inline constexpr char kOutOfBlocksError[] =
    R"(Too few blocks are free or cache-only.)";

inline constexpr char kRangeCapError[] =
    R"(The request would need more than `max_ranges` ranges.)";

inline constexpr char kRanges[] =
    R"(The blocks of one request, in order, as ranges.

Made by `KVAllocator.new_ranges()`. Only `release()` drops its references;
deleting the object does not. A view, which `extend()`, `match()` and
`part()` return, has none. An index gives a block's id, in O(log ranges);
slices are not supported.)";

inline constexpr char kRangesNumRanges[] = R"(Number of ranges.)";

inline constexpr char kRangesRanges[] = R"(ranges($self, /)
--

Return the ranges as a list of (start, count), both in blocks.)";

inline constexpr char kRangesPart[] = R"(part($self, start, stop, /)
--

Return the blocks at [start, stop) as a view that holds no references.

The bounds are block indices and behave as in a slice.)";

inline constexpr char kRangesBlockIds[] =
    R"(block_ids($self, /, start=0, stop=None)
--

Return the ids of the blocks at [start, stop) as a list.

The bounds are block indices and behave as in a slice.)";

inline constexpr char kRangesBlockIdsInto[] =
    R"(block_ids_into($self, /, buffer, start=0, stop=None)
--

Write the ids of the blocks at [start, stop) into an int32 buffer.

Fills it from its begin. The bounds are block indices and behave as in a
slice.

Returns:
    How many ids were written.

Raises:
    TypeError: `buffer` is not a writable, contiguous, one-dimensional
        buffer of int32.
    ValueError: The buffer is too short; nothing was written.)";

inline constexpr char kAllocator[] =
    R"(KVAllocator(num_blocks, max_ranges=256)
--

A pool of KV blocks, given out as contiguous ranges.

A block has a request reference for each list that it is in, which are
counted to 2**31 - 1, and at most one cache reference. With neither it is
free; with the cache reference only, it is cache-only and may be evicted. At
first every block is free.

Args:
    num_blocks: Size of the pool; block ids are in [0, num_blocks).
    max_ranges: Most ranges that a request may have; 0 means no cap.)";

inline constexpr char kAllocatorNumBlocks[] =
    R"(Number of blocks in the pool.)";

inline constexpr char kAllocatorNumFreeBlocks[] =
    R"(Number of blocks that an allocation can get: free or cache-only.)";

inline constexpr char kAllocatorNumCacheOnlyBlocks[] =
    R"(Number of blocks that only the cache holds.)";

inline constexpr char kAllocatorNumExtents[] = R"(Number of free extents.)";

inline constexpr char kAllocatorLargestExtent[] =
    R"(Length of the largest free extent, in blocks.

If more than 64 are about as long, it may be one that is up to 1/32
shorter.)";

inline constexpr char kAllocatorMaxRanges[] =
    R"(Most ranges that a request may have; 0 means no cap.)";

inline constexpr char kAllocatorCopyBound[] =
    R"(Most copies of an admission, or None. See `set_copy_bound()`.)";

inline constexpr char kAllocatorCopiesLeft[] =
    R"(Copies that are left for the step's further admissions, or None.)";

inline constexpr char kAllocatorAllocate[] = R"(allocate($self, count, /)
--

Take `count` contiguous blocks and return (start, count), in blocks.

Each block gets one request reference; drop it with `release_blocks()`.
What is cached there is moved.

Raises:
    OutOfBlocksError: There is no such stretch; nothing has changed.)";

inline constexpr char kAllocatorNewRanges[] = R"(new_ranges($self, /)
--

Return an empty `KVRanges` for a new request.)";

inline constexpr char kAllocatorExtend[] =
    R"(extend($self, ranges, count, expected=0, /)
--

Append `count` blocks to the request.

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
    RangeCapError: Too many ranges; nothing has changed.)";

inline constexpr char kAllocatorGrow[] = R"(grow($self, ranges, count, /)
--

Do as `extend()` does, without a view: for the hot path.

Returns:
    The number of ranges added; 0 means that the request grew in place.)";

inline constexpr char kAllocatorStats[] = R"(stats($self, /)
--

Return what operators watch, in blocks unless said otherwise.

O(1).

Returns:
    Now: `free_blocks`, `held_blocks` and `cache_only_blocks`, `extents`
    (number of free ones), `largest_extent`, `requests` (number with
    ranges) and `ranges_per_request` (number of requests by their number
    of ranges: "1", "2", "3-4" to "129-256", ">256"). Since the pool was
    made: `spills` (growths that needed a further range),
    `evicted_blocks`, `kept_blocks` (moved, and so still cached),
    `block_copies` (that `take_copies()` returned), `cap_events` (calls that
    failed for `max_ranges`).)";

inline constexpr char kAllocatorAcquire[] =
    R"(acquire($self, ranges, block_ids, /)
--

Add a request reference to each block and append it to the request.

Raises:
    ValueError: A block is free; nothing has changed.
    OverflowError: A block has 2**31 - 1; nothing has changed.
    RangeCapError: Too many ranges; nothing has changed.)";

inline constexpr char kAllocatorRelease[] = R"(release($self, ranges, /)
--

Drop the request's reference on each block, last block first.

Blocks without any reference become free; cached ones become the most
recently used cache-only blocks. `ranges` is empty afterwards.)";

inline constexpr char kAllocatorRetainBlocks[] =
    R"(retain_blocks($self, block_ids, /)
--

Add a request reference to each block, also to a free one.

Raises:
    ValueError: A block is outside the pool; nothing has changed.
    OverflowError: A block has 2**31 - 1; nothing has changed.)";

inline constexpr char kAllocatorReleaseBlocks[] =
    R"(release_blocks($self, block_ids, /)
--

Drop a request reference of each block, in the order given.

Raises:
    ValueError: A block has none left; nothing has changed.)";

inline constexpr char kAllocatorCache[] = R"(cache($self, block_id, /)
--

Set the block's cache reference. A request must hold the block.

Raises:
    ValueError: No request does, the block is cached already, or the
        pool has a `PrefixIndex`, whose `insert()` does it.)";

inline constexpr char kAllocatorCacheBlocks[] =
    R"(cache_blocks($self, block_ids, /)
--

Set the cache reference of each block, as `cache()` does.

Raises:
    ValueError: A block is not held or is cached; nothing has changed.)";

inline constexpr char kAllocatorCountUnreferenced[] =
    R"(count_unreferenced($self, block_ids, /)
--

Return how many of the blocks no request holds.

Acquiring them takes as many from `num_free_blocks`.)";

inline constexpr char kAllocatorUncache[] = R"(uncache($self, block_id, /)
--

Drop the block's cache reference. A cache-only block becomes free.

Raises:
    ValueError: The block is not cached.)";

inline constexpr char kAllocatorIsCached[] = R"(is_cached($self, block_id, /)
--

Return whether the block has its cache reference.)";

inline constexpr char kAllocatorRefCount[] = R"(ref_count($self, block_id, /)
--

Return the block's number of request references.)";

inline constexpr char kAllocatorTakeEvicted[] = R"(take_evicted($self, /)
--

Return the blocks evicted since the last call, in eviction order.

The list grows until it is taken.)";

inline constexpr char kAllocatorClearEvicted[] = R"(clear_evicted($self, /)
--

Do as `take_evicted()` does, without making the list.)";

inline constexpr char kAllocatorBeginStep[] = R"(begin_step($self, /)
--

Tell that a step is being scheduled and return its number, from 1 on.)";

inline constexpr char kAllocatorProcessStep[] = R"(process_step($self, step, /)
--

Tell that the workers have done a step and all before it.

Blocks whose hashes it set may be moved from now on.

Raises:
    ValueError: The step has not begun, or a later one was processed.)";

inline constexpr char kAllocatorTakeCopies[] = R"(take_copies($self, /)
--

Return the copies that the step's moves come to, as (source, target).

The workers make them before anything else of the step. They read all
sources before they write any target, or make the copies in this order:
each block is written after it has been read, but for cycles, which come
last. A block is the target of one copy at most.)";

inline constexpr char kAllocatorRecordMoves[] =
    R"(record_moves($self, record, /)
--

Keep moves for `take_moves()`, or stop that.)";

inline constexpr char kAllocatorTakeMoves[] = R"(take_moves($self, /)
--

Return the moves recorded since the last call, as (from, to), in order.

By the ids that blocks had then; `num_blocks` stands for a place where a
content waited. The list grows until it is taken.)";

inline constexpr char kAllocatorSetCopyBound[] =
    R"(set_copy_bound($self, copies, /)
--

Bound the copies that an admission may make; None means no bound.

Those of a step make nearly half as many more at most. With 0 no block is ever
moved: a request gets the blocks that have left the cache.

Raises:
    ValueError: The bound is negative.)";

inline constexpr char kAllocatorKeepCopiesFromFreed[] =
    R"(keep_copies_from_freed($self, keep, /)
--

Keep copies out of blocks given back since the last processed step.

For a connector that reads them still, and is not told of copies.)";

inline constexpr char kAllocatorSourceOf[] = R"(source_of($self, block_id, /)
--

Return where the block's content is until the step's copies are made.)";

inline constexpr char kAllocatorFreeBlocks[] =
    R"(free_blocks($self, after, limit, /)
--

Return free blocks in the order of eviction, `limit` at most.

Ids stand for the empty ones, too: each place that one has in the order is
given one of them, anew at each call.

Args:
    after: The block that they come behind, or None for the first ones. Nothing
        comes behind a block that a request holds.
    limit: Most blocks to return.

Raises:
    ValueError: `after` is no block of the pool.)";

inline constexpr char kAllocatorFreeQueue[] = R"(free_queue($self, /)
--

Return the blocks that no request holds, the next to be given away first.

For tests: -1 stands for an empty one, since any will do.)";

inline constexpr char kAllocatorCheckInvariants[] =
    R"(check_invariants($self, /)
--

Raise RuntimeError for the first broken invariant. Scans the pool.)";

inline constexpr char kAllocatorDump[] = R"(dump($self, /)
--

Return all state that later calls depend on, as opaque bytes.

For tests: equal bytes mean equal state. The order in which extents are
searched is part of it.)";

inline constexpr char kIndex[] = R"(PrefixIndex(allocator, record_evicted=False)
--

The cached blocks of a `KVAllocator`, by block hash.

A hash is any bytes; up to 40 bytes cost no memory of their own. A block has
its cache reference exactly while it has an entry here: the allocator's
evictions remove both at once. The length is the number of these blocks.

Hashes are looked up by SipHash-1-3 with a secret of the process, as Python's
own are: random, or from `PYTHONHASHSEED` where that is set to a number. Who
does not know it cannot make up prompts whose look-ups are slow.

Args:
    allocator: Has one index at most. Its pool must have no cached block
        yet. It keeps the index for as long as it lives itself.
    record_evicted: Keep evicted hashes for `take_evicted_hashes()`.)";

inline constexpr char kIndexNumHashes[] =
    R"(Number of different hashes that blocks are cached under.)";

inline constexpr char kIndexMatch[] = R"(match($self, /, hashes, limit=None)
--

Return the blocks of the longest prefix whose hashes are all cached.

Looks at `limit` hashes at most. Of several blocks with one hash, the
first inserted is taken.

Returns:
    A view that holds no reference: pass it to `KVAllocator.acquire()`
    before anything else is allocated.)";

inline constexpr char kIndexInsert[] =
    R"(insert($self, ranges, hashes, start, stop, /)
--

Cache the request's blocks at [start, stop) under hashes[start:stop].

Each gets its cache reference and its entry. A block that is cached
under the same hash is skipped; one under another hash moves to the new
one.

Returns:
    How many of the blocks were not cached before.

Raises:
    ValueError: The bounds do not fit `ranges` and `hashes`, or no
        request holds one of the blocks; nothing has changed.)";

inline constexpr char kIndexErase[] = R"(erase($self, block_id, /)
--

Drop the block's entry and cache reference.

Raises:
    ValueError: The block is not cached.)";

inline constexpr char kIndexEvict[] = R"(evict($self, block_ids, /)
--

Drop the entry and cache reference of each block that has them.)";

inline constexpr char kIndexClear[] = R"(clear($self, /)
--

Drop every entry and cache reference. Scans the pool.)";

inline constexpr char kIndexFind[] = R"(find($self, hash, /)
--

Return the block inserted first under the hash, or None.)";

inline constexpr char kIndexCountProbes[] = R"(count_probes($self, hash, /)
--

Return how many cached hashes a look-up of the hash is compared with.

For tests: what it costs, without a clock.)";

inline constexpr char kIndexHashOf[] = R"(hash_of($self, block_id, /)
--

Return the hash that the block is cached under, or None.)";

inline constexpr char kIndexPositionOf[] = R"(position_of($self, block_id, /)
--

Return the index in `ranges` that the block was inserted at, or None.)";

inline constexpr char kIndexTakeEvictedHashes[] =
    R"(take_evicted_hashes($self, /)
--

Return the hashes of the blocks evicted since the last call, in order.

One for each block of `KVAllocator.take_evicted()`. The list grows until
it is taken.

Raises:
    RuntimeError: The index was made without `record_evicted`.)";

inline constexpr char kCoordMap[] =
    R"(CoordMap(num_layers, num_blocks, block_size, bytes_per_token)
--

Where a token's KV data lies in one buffer that holds all layers.

Args:
    num_layers: Number of layers.
    num_blocks: Number of blocks in each layer.
    block_size: Number of tokens in a block.
    bytes_per_token: Size of a token's KV data in one layer, in bytes.

Raises:
    ValueError: One is below 1, or the size in bytes, the product of all
        four, is 2**63 or more.)";

inline constexpr char kCoordMapIndex[] = R"(index($self, layer, block, token, /)
--

Return (layer * num_blocks + block) * block_size + token, in tokens.

Raises:
    IndexError: A coordinate is outside its bound.)";

inline constexpr char kCoordMapOffset[] =
    R"(offset($self, layer, block, token, /)
--

Return the token's offset in the buffer: its index in bytes.

Raises:
    IndexError: A coordinate is outside its bound.)";

inline constexpr char kCoordMapCoords[] = R"(coords($self, index, /)
--

Return the (layer, block, token) whose `index()` is `index`.

Raises:
    IndexError: The index is outside the map.)";

}  // namespace vllm::tagma::bindings::doc
