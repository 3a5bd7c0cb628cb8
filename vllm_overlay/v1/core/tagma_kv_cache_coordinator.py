# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The coordinator of the "tagma" KV cache backend, for its only group."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from vllm.utils.math_utils import cdiv
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
from vllm.v1.core.kv_cache_utils import BlockHashList, KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.core.tagma_block_list import (
    TagmaBlockList,
    TagmaRangeList,
    TagmaRequestBlocks,
    ids_or_ranges_of,
)
from vllm.v1.core.tagma_block_pool import TagmaBlockPool
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.request import Request
from vllm.v1.tagma_refusals import verify_kv_cache_groups


class TagmaFullAttentionManager(FullAttentionManager):
    """`FullAttentionManager` whose requests hold ranges of blocks.

    Only placement is overridden. How many blocks a request needs, and which of
    them are cached, is upstream's code.
    """

    block_pool: TagmaBlockPool
    # Upstream's are lists, which its own code extends.
    req_to_blocks: defaultdict[str, TagmaRequestBlocks]  # type: ignore[assignment]
    # Of the request that slots are being allocated for, computed or not.
    num_known_tokens = 0

    def __init__(
        self, kv_cache_spec: KVCacheSpec, block_pool: TagmaBlockPool, **kwargs
    ):
        super().__init__(kv_cache_spec, block_pool, **kwargs)
        self.req_to_blocks = defaultdict(partial(TagmaRequestBlocks, block_pool))

    @classmethod
    def _get_num_evictable_blocks(cls, blocks: Sequence[KVCacheBlock]) -> int:
        if isinstance(blocks, TagmaBlockList):
            return blocks.pool.allocator.count_unreferenced(ids_or_ranges_of(blocks))
        return super()._get_num_evictable_blocks(blocks)

    # A view is no list, and is as good for who reads it.
    @classmethod
    def find_longest_cache_hit(  # type: ignore[override]
        cls,
        block_hashes: BlockHashList,
        max_length: int,
        kv_cache_group_ids: list[int],
        block_pool: BlockPool,
        kv_cache_spec: KVCacheSpec,
        drop_eagle_block: bool,
        **kwargs,
    ) -> tuple[tuple[TagmaBlockList], int]:
        assert isinstance(block_pool, TagmaBlockPool)
        assert isinstance(block_hashes, Sequence)
        block_size = kv_cache_spec.block_size
        hit: TagmaBlockList = block_pool.get_cached_prefix(
            block_hashes, max_length // block_size
        )
        if drop_eagle_block:
            # The drafter needs the hidden states of the last block's tokens.
            hit = hit[:-1]
        return (hit,), len(hit) * block_size

    def add_local_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[KVCacheBlock],
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        blocks = self.req_to_blocks[request_id]
        assert len(blocks) == 0
        self.block_pool.acquire(blocks, new_computed_blocks)
        blocks.num_slots = len(blocks.ranges) * self.block_size
        self.num_cached_block[request_id] = len(new_computed_blocks)

    def allocate_external_computed_blocks(
        self,
        request_id: str,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
        record_for_zeroing: bool = True,
    ) -> None:
        num_tokens = num_local_computed_tokens + num_external_computed_tokens
        self.grow(request_id, num_tokens, record_for_zeroing)

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        return list(self.grow(request_id, num_tokens) or ())

    def free(self, request_id: str) -> None:
        # A request that is aborted before it got blocks has none to release.
        blocks = self.req_to_blocks.get(request_id)
        self.pop_blocks_for_free(request_id)
        if blocks is not None:
            self.block_pool.release(blocks)

    def grow(
        self, request_id: str, num_tokens: int, record_for_zeroing: bool = True
    ) -> TagmaRangeList | None:
        """Append the blocks that `num_tokens` token slots lack and return them."""
        blocks = self.req_to_blocks[request_id]
        num_required_blocks = cdiv(num_tokens, self.block_size)
        num_new_blocks = num_required_blocks - len(blocks.ranges)
        if num_new_blocks <= 0:
            return None
        num_known_blocks = cdiv(self.num_known_tokens, self.block_size)
        new_blocks = self.block_pool.grow(
            blocks, num_new_blocks, num_known_blocks - num_required_blocks
        )
        blocks.num_slots = num_required_blocks * self.block_size
        if self._record_new_block_ids and record_for_zeroing:
            self.new_block_ids.extend(new_blocks.block_ids())
        return new_blocks


class TagmaKVCacheCoordinator(UnitaryKVCacheCoordinator):
    """`UnitaryKVCacheCoordinator` over `TagmaBlockPool`.

    Prefix caching may be off, which upstream serves with another coordinator.

    Raises:
        UnsupportedByTagmaError: The model's KV cache is not one that the backend can
            serve.

    """

    block_pool: TagmaBlockPool

    def __init__(self, *, kv_cache_config: KVCacheConfig, **kwargs):
        verify_kv_cache_groups(kv_cache_config)
        # Upstream fills a pool of one block; the real one takes its place.
        super().__init__(
            kv_cache_config=replace(kv_cache_config, num_blocks=1), **kwargs
        )
        self.kv_cache_config = kv_cache_config
        self.block_pool = TagmaBlockPool.with_settings_of(
            self.block_pool, kv_cache_config.num_blocks
        )
        self.group = TagmaFullAttentionManager(
            self.kv_cache_spec,
            self.block_pool,
            enable_caching=self.block_pool.enable_caching,
            kv_cache_group_id=0,
            scheduler_block_size=self.scheduler_block_size,
            needs_kv_cache_zeroing=kv_cache_config.needs_kv_cache_zeroing,
        )
        self.group.use_eagle = self.single_type_managers[0].use_eagle
        self.single_type_managers = (self.group,)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        super().cache_blocks(request, num_computed_tokens)
        blocks = self.group.req_to_blocks.get(request.request_id)
        if blocks is not None and self.group.enable_caching:
            num_cached = self.group.num_cached_block.get(request.request_id, 0)
            blocks.next_cached = (
                num_cached + 1
            ) * self.block_size + self.num_reprefillable_tokens

    # Upstream joins the groups' lists. A view of one group gives all back at once.
    def pop_blocks_for_free(  # type: ignore[override]
        self, request_id: str
    ) -> Sequence[KVCacheBlock]:
        return self.group.pop_blocks_for_free(request_id)
