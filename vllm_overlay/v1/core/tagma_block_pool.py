# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The block pool of the "tagma" KV cache backend."""

from collections.abc import Iterable, Sequence

from vllm.tagma import KVAllocator
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    KVCacheBlock,
    make_block_hash_with_group_id,
)
from vllm.v1.core.tagma_block_list import (
    NULL_BLOCK_ID,
    TagmaBlock,
    TagmaBlockList,
    TagmaRangeList,
    block_ids_of,
)


class BlockHashToBlockIdMap:
    """`BlockHashToBlockMap` that holds block ids instead of blocks.

    Most hashes map to one block, so a dict of ids is made only for more.
    """

    def __init__(self, pool: "TagmaBlockPool"):
        self._pool = pool
        self._cache: dict[BlockHashWithGroupId, int | dict[int, None]] = {}

    def get_one_id(self, key: BlockHashWithGroupId) -> int | None:
        """Return the id of the block cached first under the hash."""
        ids = self._cache.get(key)
        return next(iter(ids)) if isinstance(ids, dict) else ids

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        """Return the block cached first under the hash."""
        block_id = self.get_one_id(key)
        return None if block_id is None else TagmaBlock(self._pool, block_id)

    def contain(self, key: BlockHashWithGroupId, block_id: int) -> bool:
        """Whether the block is cached under the hash."""
        ids = self._cache.get(key)
        return block_id in ids if isinstance(ids, dict) else ids == block_id

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Cache the block under the hash."""
        ids = self._cache.setdefault(key, block.block_id)
        if isinstance(ids, dict):
            ids[block.block_id] = None
        elif ids != block.block_id:
            self._cache[key] = {ids: None, block.block_id: None}

    def pop(self, key: BlockHashWithGroupId, block_id: int) -> KVCacheBlock | None:
        """Forget the block under the hash, and return it if it was cached."""
        if not self.contain(key, block_id):
            return None
        ids = self._cache[key]
        if isinstance(ids, dict) and len(ids) > 1:
            del ids[block_id]
        else:
            del self._cache[key]
        return TagmaBlock(self._pool, block_id)

    def __len__(self) -> int:
        return len(self._cache)


class FreeBlockCount:
    """The part of `FreeKVCacheBlockQueue` that does not order the blocks."""

    def __init__(self, allocator: KVAllocator):
        self._allocator = allocator

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request holds, cached ones included."""
        return self._allocator.num_free_blocks


class TagmaBlockPool(BlockPool):
    """`BlockPool` over the range allocator, without an object per block.

    The allocator knows which blocks are free, held or cached, and evicts; this
    class adds the hashes. Whatever concerns hashes and events alone is upstream's
    code, which reaches the blocks through views.

    Args:
        settings: A pool to take the settings from, whichever upstream has.
        num_gpu_blocks: The number of blocks, the null block included.

    """

    blocks: TagmaBlockList  # type: ignore[assignment]
    free_block_queue: FreeBlockCount  # type: ignore[assignment]
    cached_block_hash_to_block: BlockHashToBlockIdMap  # type: ignore[assignment]

    def __init__(self, settings: BlockPool, num_gpu_blocks: int):
        # BlockPool.__init__ would make an object per block.
        vars(self).update(vars(settings))
        # A request's number of ranges is not limited here: running out of
        # blocks is the only failure that the scheduler can act on.
        self.allocator = KVAllocator(num_gpu_blocks, max_ranges=0)
        self.num_gpu_blocks = num_gpu_blocks
        self.block_hashes: dict[int, tuple[BlockHashWithGroupId, int | None]] = {}
        self.blocks = TagmaBlockList(self, range(num_gpu_blocks))
        self.free_block_queue = FreeBlockCount(self.allocator)
        self.cached_block_hash_to_block = BlockHashToBlockIdMap(self)
        null_block_id, _ = self.allocator.allocate(1)
        assert null_block_id == NULL_BLOCK_ID
        self.null_block = TagmaBlock(self, NULL_BLOCK_ID)

    def new_range_list(self) -> TagmaRangeList:
        """Return an empty list of blocks, to be grown and released here."""
        return TagmaRangeList(self, self.allocator.new_ranges())

    def grow(
        self, blocks: TagmaRangeList, num_blocks: int, num_expected: int = 0
    ) -> TagmaRangeList:
        """Append `num_blocks` new blocks to `blocks` and return them.

        `num_expected` more are sure to follow, if possible right behind them.
        """
        new_blocks = TagmaRangeList(
            self, self.allocator.extend(blocks.ranges, num_blocks, num_expected)
        )
        self._after_allocation(new_blocks)
        return new_blocks

    def acquire(self, blocks: TagmaRangeList, cached: Sequence[KVCacheBlock]) -> None:
        """Append the prefix-cache hit `cached` to `blocks`."""
        self.allocator.acquire(blocks.ranges, block_ids_of(cached))
        self._after_access(cached)

    def release(self, blocks: TagmaRangeList) -> None:
        """Give back all of `blocks`, the last one first, and empty the list."""
        self.allocator.release(blocks.ranges)

    def get_cached_prefix(
        self, block_hashes: Iterable[BlockHash], kv_cache_group_id: int
    ) -> TagmaBlockList:
        """Return the cached blocks of the longest known prefix of the hashes."""
        ids: list[int] = []
        for block_hash in block_hashes:
            block_id = self.cached_block_hash_to_block.get_one_id(
                make_block_hash_with_group_id(block_hash, kv_cache_group_id)
            )
            if block_id is None:
                break
            ids.append(block_id)
        return TagmaBlockList(self, ids)

    def num_evictable(self, blocks: Sequence[KVCacheBlock]) -> int:
        """Return how many of the cached `blocks` no request holds."""
        return self.allocator.count_unreferenced(block_ids_of(blocks))

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        if num_blocks > self.get_num_free_blocks():
            raise ValueError(f"Cannot get {num_blocks} free blocks from the pool")
        if num_blocks == 0:
            return []
        return list(self.grow(self.new_range_list(), num_blocks))

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.allocator.retain_blocks(_without_null(block_ids_of(blocks)))
        self._after_access(blocks)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        self.allocator.release_blocks(_without_null(block_ids_of(ordered_blocks)))

    def reset_prefix_cache(self) -> bool:
        if not super().reset_prefix_cache():
            return False
        self.cached_block_hash_to_block = BlockHashToBlockIdMap(self)
        return True

    def _insert_block_hash(
        self,
        block_hash_with_group_id: BlockHashWithGroupId,
        block: KVCacheBlock,
        num_tokens: int | None,
    ) -> None:
        if block.block_id in self.block_hashes:
            super()._insert_block_hash(block_hash_with_group_id, block, num_tokens)
            return
        # Every newly full block comes here: ask for its hash once, not thrice.
        block.set_block_hash(block_hash_with_group_id, num_tokens)
        self.cached_block_hash_to_block.insert(block_hash_with_group_id, block)

    def _after_allocation(self, new_blocks: TagmaRangeList) -> None:
        for block_id in self.allocator.take_evicted():
            self._maybe_evict_cached_block(TagmaBlock(self, block_id))
        if self.metrics_collector:
            for block in new_blocks:
                if self.enable_caching:
                    self.metrics_collector.on_block_evicted(block)
                self.metrics_collector.on_block_allocated(block)

    def _after_access(self, blocks: Sequence[KVCacheBlock]) -> None:
        if self.metrics_collector:
            for block in blocks:
                self.metrics_collector.on_block_accessed(block)


def _without_null(block_ids: Sequence[int]) -> list[int]:
    """Drop the null block, whose references nobody counts."""
    return [block_id for block_id in block_ids if block_id != NULL_BLOCK_ID]
