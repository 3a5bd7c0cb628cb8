# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The KV cache manager of the "tagma" backend: requests hold ranges of blocks."""

from collections.abc import Sequence

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.tagma_block_list import sendable_ids_of
from vllm.v1.core.tagma_block_pool import TagmaBlockPool
from vllm.v1.core.tagma_kv_cache_coordinator import TagmaKVCacheCoordinator
from vllm.v1.request import Request


class TagmaKVCacheBlocks(KVCacheBlocks):
    """`KVCacheBlocks` that lists its ids without an object per block."""

    def get_block_ids(  # type: ignore[override]
        self,
        allow_none: bool = False,
        *,
        group_ids: Sequence[int] | None = None,
    ) -> tuple[Sequence[int], ...] | None:
        if group_ids is None:
            group_ids = range(len(self.blocks))
        groups = [self.blocks[group_id] for group_id in group_ids]
        if allow_none and not any(groups):
            return None
        return tuple(sendable_ids_of(group) for group in groups)


class TagmaKVCacheManager(KVCacheManager):
    """`KVCacheManager` that places the blocks of a request in contiguous ranges.

    The contract with the scheduler is upstream's, and so is most of the code: only
    the coordinator and its block lists differ. In particular `allocate_slots`
    returns None for a lack of blocks and for nothing else, however many ranges a
    request ends up with.
    """

    make_coordinator = TagmaKVCacheCoordinator  # type: ignore[assignment]
    block_pool: TagmaBlockPool

    def create_kv_cache_blocks(
        self, blocks: tuple[Sequence[KVCacheBlock], ...]
    ) -> KVCacheBlocks:
        return TagmaKVCacheBlocks(blocks) if any(blocks) else self.empty_kv_cache_blocks

    def allocate_slots(
        self, request: Request, num_new_tokens: int, *args, **kwargs
    ) -> KVCacheBlocks | None:
        # A prompt may come in chunks: its later ones belong behind the first.
        (manager,) = self.coordinator.single_type_managers
        manager.num_known_tokens = request.num_tokens
        return super().allocate_slots(request, num_new_tokens, *args, **kwargs)

    def estimate_cached_tokens(self, request: Request) -> int:
        # Later blocks cover more tokens, so the last one with a hash tells it.
        for block in reversed(self.get_blocks(request.request_id).blocks[0]):
            if (num_tokens := block.block_hash_num_tokens) is not None:
                return num_tokens
        return 0
