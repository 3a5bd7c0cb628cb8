# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The block pool of the "tagma" KV cache backend."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vllm.tagma import KVAllocator, PrefixIndex
from vllm.v1.block_ranges import NULL_BLOCK_ID
from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    KVCacheBlock,
    get_block_hash,
)
from vllm.v1.core.tagma_block_list import (
    GROUP_ID,
    ListEnd,
    ReversedBlocks,
    TagmaBlock,
    TagmaBlockList,
    TagmaRangeList,
    TagmaRequestBlocks,
    ViewedBlockPool,
    block_ids_of,
    ids_or_ranges_of,
    with_group_id,
)
from vllm.v1.request import Request


class CachedBlocks(BlockHashToBlockMap):
    """A `BlockHashToBlockMap` that reads the pool's index."""

    def __init__(self, pool: ViewedBlockPool):
        self._pool = pool

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        """Return the block cached first under the hash."""
        block_id = self._pool.index.find(get_block_hash(key))
        return None if block_id is None else TagmaBlock(self._pool, block_id)

    def contain(self, key: BlockHashWithGroupId, block_id: int) -> bool:
        """Whether the block is cached under the hash."""
        return self._pool.index.hash_of(block_id) == get_block_hash(key)

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Raise: a block is cached by `TagmaBlockPool.cache_full_blocks()`."""
        raise NotImplementedError("TagmaBlockPool.cache_full_blocks() caches blocks")

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Forget the block under the hash, and return it if it was cached."""
        if not self.contain(key, block_id):
            return None
        self._pool.index.erase(block_id)
        return TagmaBlock(self._pool, block_id)

    def __len__(self) -> int:
        return self._pool.index.num_hashes


class FreeBlocks:
    """`FreeKVCacheBlockQueue` for who walks it: the engine's order of eviction.

    Empty blocks are alike to the engine, which decides where it takes one. A place of
    the order that has an empty block is given one of them, anew at each look, and no
    two places the same one. Cached blocks are where they are with the paged pool.
    """

    # Blocks that are asked for at once.
    _PART = 64

    def __init__(self, pool: ViewedBlockPool):
        self._pool = pool
        self.fake_free_list_head = ListEnd(pool)
        self.fake_free_list_tail = ListEnd(pool)

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request holds, cached ones included."""
        return self._pool.allocator.num_free_blocks

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return all blocks in the order in which they are given away."""
        return list(self.iter_blocks_after(None))

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """Iterate over the blocks behind `cursor`, over all with None."""
        after = None if cursor is None else cursor.block_id
        while ids := self._pool.allocator.free_blocks(after, self._PART):
            for block_id in ids:
                yield TagmaBlock(self._pool, block_id)
            after = ids[-1]


# The second base is named for the tools that read what overrides upstream's.
class TagmaBlockPool(ViewedBlockPool, BlockPool):
    """`BlockPool` over the range allocator, without an object per block.

    The allocator knows which blocks are free, held or cached. It evicts in upstream's
    order, and moves what is cached where a request is to lie; its index finds cached
    blocks by hash, wherever they are. Whatever concerns events and metrics alone is
    upstream's code, which reaches the blocks through views.

    Args:
        num_gpu_blocks: The number of blocks, the null block included.
        settings: Further arguments of `BlockPool`, whichever the release has.

    """

    # Upstream's types are a list and a class with further attributes. What is missing
    # here changes the blocks, or their order, one by one.
    blocks: TagmaBlockList  # type: ignore[assignment]
    free_block_queue: FreeBlocks  # type: ignore[assignment]

    def __init__(self, num_gpu_blocks: int, **settings: Any):
        # Upstream makes an object per block: of one block, here.
        super().__init__(1, **settings)
        # A request's number of ranges is not limited here: running out of
        # blocks is the only failure that the scheduler can act on.
        self.allocator = KVAllocator(num_gpu_blocks, max_ranges=0)
        self.index = PrefixIndex(
            self.allocator, record_evicted=self.enable_kv_cache_events
        )
        self.num_gpu_blocks = num_gpu_blocks
        self.blocks = TagmaBlockList(self, range(num_gpu_blocks))
        self.free_block_queue = FreeBlocks(self)
        self.cached_block_hash_to_block = CachedBlocks(self)
        self._is_watched = self.enable_kv_cache_events or self.metrics_collector
        self.allocator.record_moves(self.metrics_collector is not None)
        null_block_id, _ = self.allocator.allocate(1)
        assert null_block_id == NULL_BLOCK_ID
        self.null_block = TagmaBlock(self, NULL_BLOCK_ID)

    @classmethod
    def with_settings_of(cls, pool: BlockPool, num_gpu_blocks: int) -> "TagmaBlockPool":
        """Return a pool of `num_gpu_blocks` blocks, otherwise as `pool` was made."""
        names = inspect.signature(BlockPool).parameters.keys() - {"num_gpu_blocks"}
        return cls(num_gpu_blocks, **{name: getattr(pool, name) for name in names})

    def grow(
        self, blocks: TagmaRangeList, num_blocks: int, num_expected: int = 0
    ) -> TagmaRangeList:
        """Append `num_blocks` new blocks to `blocks` and return them.

        `num_expected` more are sure to follow, if possible right behind them.
        """
        new_blocks = TagmaRangeList(
            self, self.allocator.extend(blocks.ranges, num_blocks, num_expected)
        )
        if self._is_watched:
            self._report_allocation(new_blocks)
        self.allocator.clear_evicted()
        return new_blocks

    def acquire(self, blocks: TagmaRangeList, cached: Sequence[KVCacheBlock]) -> None:
        """Append the prefix-cache hit `cached` to `blocks`."""
        self.allocator.acquire(blocks.ranges, ids_or_ranges_of(cached))
        self._after_access(cached)

    def release(self, blocks: TagmaRangeList) -> None:
        """Give back all of `blocks`, the last one first, and empty the list."""
        self.allocator.release(blocks.ranges)

    def get_cached_prefix(
        self, block_hashes: Sequence[BlockHash], num_blocks: int
    ) -> TagmaRangeList:
        """Return the longest cached prefix of the first `num_blocks` hashes."""
        return TagmaRangeList(self, self.index.match(block_hashes, num_blocks))

    def get_cached_block(
        self, block_hash: BlockHash, kv_cache_group_ids: list[int]
    ) -> list[KVCacheBlock] | None:
        assert kv_cache_group_ids == [GROUP_ID]
        block_id = self.index.find(block_hash)
        return None if block_id is None else [TagmaBlock(self, block_id)]

    def cache_full_blocks(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        # Tokens beyond the model's length have no block.
        num_full_blocks = min(num_full_blocks, len(blocks))
        if num_cached_blocks >= num_full_blocks:
            return
        if self.enable_kv_cache_events:
            # For its event: _insert_block_hash() does nothing.
            super().cache_full_blocks(
                request,
                blocks,  # type: ignore[arg-type]
                num_cached_blocks,
                num_full_blocks,
                block_size,
                kv_cache_group_id,
                block_mask,
            )
        if isinstance(blocks, TagmaRangeList) and block_mask is None:
            self.index.insert(
                blocks.ranges, request.block_hashes, num_cached_blocks, num_full_blocks
            )
            return
        # The index takes blocks at their places among ranges, null blocks too.
        ranges = self.allocator.new_ranges()
        self.allocator.acquire(ranges, ids_or_ranges_of(blocks))
        for i in range(num_cached_blocks, num_full_blocks):
            is_masked = block_mask is not None and not block_mask[i - num_cached_blocks]
            if not blocks[i].is_null and not is_masked:
                self.index.insert(ranges, request.block_hashes, i, i + 1)
        self.allocator.release(ranges)

    def cache_partial_block(self, *args, **kwargs) -> BlockHashWithGroupId | None:
        raise NotImplementedError("--prefix-match-unit and Mamba models are refused")

    def move_block_hashes(self, *args, **kwargs) -> None:
        raise NotImplementedError("Mamba models are refused")

    def unpin_blocks(self, *args, **kwargs) -> None:
        raise NotImplementedError("HiSparse is refused")

    def num_evictable(self, blocks: Sequence[KVCacheBlock]) -> int:
        """Return how many of the cached `blocks` no request holds."""
        return self.allocator.count_unreferenced(ids_or_ranges_of(blocks))

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        if num_blocks > self.get_num_free_blocks():
            raise ValueError(f"Cannot get {num_blocks} free blocks from the pool")
        if num_blocks == 0:
            return []
        return list(self.grow(TagmaRequestBlocks(self), num_blocks))

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.allocator.retain_blocks(_without_null(block_ids_of(blocks)))
        self._after_access(blocks)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        if isinstance(ordered_blocks, ReversedBlocks):
            blocks = ordered_blocks.blocks
            if isinstance(blocks, TagmaRequestBlocks):
                self.release(blocks)
                return
        self.allocator.release_blocks(_without_null(block_ids_of(ordered_blocks)))

    def reset_prefix_cache(self) -> bool:
        # Upstream's code would reset block by block. It gets to see none, since the
        # index forgets all at once.
        blocks, self.blocks = self.blocks, TagmaBlockList(self, ())
        was_reset = super().reset_prefix_cache()
        self.blocks = blocks
        if not was_reset:
            return False
        self.index.clear()
        self.cached_block_hash_to_block = CachedBlocks(self)
        return True

    def _insert_block_hash(self, *args, **kwargs) -> None:
        """Do nothing: `cache_full_blocks()` inserts all hashes at once."""

    def _remove_cached_block_hashes(
        self, block: KVCacheBlock
    ) -> list[BlockHashWithGroupId]:
        block_hash = block.block_hash
        if block_hash is None:
            return []
        self.index.erase(block.block_id)
        return [block_hash]

    def _report_allocation(self, new_blocks: TagmaRangeList) -> None:
        if self.enable_kv_cache_events:
            self._emit_block_removed_events(
                [with_group_id(key) for key in self.index.take_evicted_hashes()]
            )
        if self.metrics_collector:
            self._sample_allocation(self.metrics_collector, new_blocks)

    def _sample_allocation(
        self, collector: KVCacheMetricsCollector, new_blocks: TagmaRangeList
    ) -> None:
        """Count what has left the cache, and carry along the samples that moved."""
        samples = collector.block_metrics
        for block_id in self.allocator.take_evicted():
            collector.on_block_evicted(TagmaBlock(self, block_id))
        for source, target in self.allocator.take_moves():
            collector.on_block_evicted(TagmaBlock(self, target))
            if (sample := samples.pop(source, None)) is not None:
                samples[target] = sample
        for block in new_blocks:
            if self.enable_caching:
                collector.on_block_evicted(block)
            collector.on_block_allocated(block)

    def _after_access(self, blocks: Sequence[KVCacheBlock]) -> None:
        if self.metrics_collector:
            for block in blocks:
                self.metrics_collector.on_block_accessed(block)


def _without_null(block_ids: Sequence[int]) -> list[int]:
    """Drop the null block, whose references nobody counts."""
    return [block_id for block_id in block_ids if block_id != NULL_BLOCK_ID]
