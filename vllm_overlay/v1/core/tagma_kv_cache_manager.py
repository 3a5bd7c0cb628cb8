# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The KV cache manager of the "tagma" backend: requests hold ranges of blocks."""

from collections.abc import Sequence

from vllm.config import CacheConfig
from vllm.distributed.kv_events import KVCacheEvent
from vllm.utils.math_utils import cdiv
from vllm.v1.block_moves import BlockMoves
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock, KVCacheBlockCopy
from vllm.v1.core.tagma_block_list import (
    TagmaRangeList,
    block_ids_of,
    sendable_ids_of,
)
from vllm.v1.core.tagma_block_pool import TagmaBlockPool
from vllm.v1.core.tagma_kv_cache_coordinator import TagmaKVCacheCoordinator
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.metrics.tagma_stats import TagmaStatsSource
from vllm.v1.request import Request, RequestStatus

# Requests that have to leave the watermark free.
_TO_BE_ADMITTED = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class TagmaKVCacheBlocks(KVCacheBlocks):
    """`KVCacheBlocks` that lists its ids without an object per block."""

    ids_of = staticmethod(sendable_ids_of)

    # Upstream's are lists; who sends them to the workers takes ranges as well.
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
        return tuple(self.ids_of(group) for group in groups)

    def get_unhashed_block_ids(self) -> list[int]:
        (blocks,) = self.blocks
        if not isinstance(blocks, TagmaRangeList):
            return super().get_unhashed_block_ids()
        is_cached = blocks.pool.allocator.is_cached
        return [block_id for block_id in blocks.block_ids() if not is_cached(block_id)]


class TagmaKVCacheBlockLists(TagmaKVCacheBlocks):
    """For connectors, which join lists of ids and send them to other engines."""

    ids_of = staticmethod(block_ids_of)


class TagmaKVCacheManager(KVCacheManager):
    """`KVCacheManager` that places the blocks of a request in contiguous ranges.

    The contract with the scheduler is upstream's, and so is most of the code: only
    the coordinator and its block lists differ. What runs for every request at every
    step is written out for the one full-attention group that there is.

    What is cached, hit and evicted is decided as upstream decides. To give a request
    its ranges, cached blocks are moved: the workers copy them before they do anything
    else of the step, see `take_kv_cache_block_copies()`.

    Args:
        move_bytes: How many bytes of blocks an admission may move, on each worker.
            With 0 no block is ever moved.

    """

    blocks_cls: type[TagmaKVCacheBlocks] = TagmaKVCacheBlocks
    coordinator: TagmaKVCacheCoordinator
    block_pool: TagmaBlockPool

    def make_coordinator(self, **kwargs) -> TagmaKVCacheCoordinator:
        return TagmaKVCacheCoordinator(**kwargs)

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        *args,
        move_bytes: int = CacheConfig.kv_cache_block_move_bytes,
        **kwargs,
    ) -> None:
        super().__init__(kv_cache_config, *args, **kwargs)
        self._group = self.coordinator.group
        self._requests = self._group.req_to_blocks
        self._allocator = self.block_pool.allocator
        self._allocator.set_copy_bound(move_bytes // _block_bytes(kv_cache_config))
        self._num_steps = self._num_processed_steps = 0
        self._move_targets: set[int] = set()
        self.stats_source = TagmaStatsSource(self._allocator, self._group.block_size)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: tuple[int, ...] = (),
    ) -> KVCacheBlocks | None:
        """Add slots for a request's tokens, as upstream does with one full group.

        Args:
            request: The request.
            num_new_tokens: Tokens to be computed, unverified drafts included.
            num_new_computed_tokens: Tokens that were just hit in the prefix cache.
            new_computed_blocks: The blocks of that hit.
            num_lookahead_tokens: Slots to add behind these tokens, for a drafter.
            num_external_computed_tokens: Tokens whose KV the connector has.
            delay_cache_blocks: Whether to leave the blocks uncached until a transfer
                into them has been completed.
            num_encoder_tokens: Unused: cross attention is refused.
            full_sequence_must_fit: Whether to refuse a request whose further chunks
                the pool could not hold either.
            reserved_blocks: Free blocks to leave for requests under way.
            has_scheduled_reqs: Whether the step has a request; only then does the
                watermark count.
            skip_zeroing_group_ids: Groups whose blocks for external tokens are not
                zeroed, since a load will write them.

        Blocks layout:

        ```
        ---------------------------------------------------------------------
        | < comp > | < new_comp > | < ext_comp > | < new >  | < lookahead > |
        ---------------------------------------------------------------------
        |  blocks  | prefix hit:  |                                         |
        |   held   |   acquired   |          appended, as ranges            |
        ---------------------------------------------------------------------
        |         < computed >                   |   < to be computed >     |
        ---------------------------------------------------------------------
                                  | < cached, when full, up to |
                                  |   the last verified token> |
                                  ------------------------------
        ```

        Abbreviations:

        ```
        comp      = request.num_computed_tokens
        new_comp  = num_new_computed_tokens
                  = len(new_computed_blocks) * block_size
        ext_comp  = num_external_computed_tokens
        new       = num_new_tokens
        lookahead = num_lookahead_tokens
        ```

        Returns:
            The new blocks, or None for a lack of blocks and for nothing else,
            however many ranges the request ends up with.

        Raises:
            ValueError: There are neither new nor computed tokens.

        """
        adopts_tokens = num_new_computed_tokens or num_external_computed_tokens
        asks_for_more = reserved_blocks or full_sequence_must_fit or delay_cache_blocks
        if (
            new_computed_blocks is None
            and not adopts_tokens
            and not asks_for_more
            and self._fill_held_slots(request, num_new_tokens, num_lookahead_tokens)
        ):
            return self.empty_kv_cache_blocks
        if not (num_new_tokens or adopts_tokens):
            raise ValueError(
                "num_new_tokens must be greater than 0 when there are no "
                "computed tokens to adopt"
            )

        if new_computed_blocks is None:
            new_computed_blocks = self.empty_kv_cache_blocks
        num_local_tokens = request.num_computed_tokens + num_new_computed_tokens
        num_tokens = num_new_tokens + min(
            num_local_tokens + num_external_computed_tokens, self.max_model_len
        )
        num_slots = min(num_tokens + num_lookahead_tokens, self.max_model_len)
        num_kept_blocks = 0
        if has_scheduled_reqs and request.status in _TO_BE_ADMITTED:
            num_kept_blocks = self.watermark_blocks
        if not self._fits(
            request,
            new_computed_blocks,
            num_slots,
            num_kept_blocks,
            reserved_blocks,
            full_sequence_must_fit,
        ):
            return None

        new_blocks = self._grow(
            request,
            new_computed_blocks,
            num_local_tokens,
            num_external_computed_tokens,
            num_slots,
            skip_zeroing_group_ids,
        )
        if self.enable_caching and not delay_cache_blocks:
            self._cache_slots(request, num_tokens)
        return new_blocks

    def _fill_held_slots(
        self, request: Request, num_new_tokens: int, num_lookahead_tokens: int
    ) -> bool:
        """Put new tokens into slots that a running request holds, if they suffice.

        Most steps of a running request end here.
        """
        blocks = self._requests.get(request.request_id)
        num_tokens = request.num_computed_tokens + num_new_tokens
        if (
            blocks is None
            or num_tokens + num_lookahead_tokens > blocks.num_slots
            or num_new_tokens <= 0
            or (self.watermark_blocks and request.status in _TO_BE_ADMITTED)
        ):
            return False
        if num_tokens >= blocks.next_cached:
            self._cache_slots(request, num_tokens)
        return True

    def _fits(
        self,
        request: Request,
        hit: KVCacheBlocks,
        num_slots: int,
        num_kept_blocks: int,
        reserved_blocks: int,
        full_sequence_must_fit: bool,
    ) -> bool:
        """Whether there are enough free blocks for so many slots of a request.

        Of the free blocks `num_kept_blocks` have to stay in any case, and
        `reserved_blocks` as soon as `num_slots` are taken.
        """
        (hit_blocks,) = hit.blocks
        num_held = len(hit_blocks)
        num_free = self._allocator.num_free_blocks - num_kept_blocks
        if hit_blocks:
            # Who acquires a hit takes it from the free blocks.
            num_free -= self.block_pool.num_evictable(hit_blocks)
        if (blocks := self._requests.get(request.request_id)) is not None:
            num_held += len(blocks.ranges)
        block_size = self._group.block_size
        if full_sequence_must_fit:
            num_all = cdiv(min(request.num_tokens, self.max_model_len), block_size)
            if max(num_all - num_held, 0) > num_free:
                return False
        num_new = max(cdiv(num_slots, block_size) - num_held, 0)
        return num_new + reserved_blocks <= num_free

    def _grow(
        self,
        request: Request,
        hit: KVCacheBlocks,
        num_local_tokens: int,
        num_external_tokens: int,
        num_slots: int,
        skip_zeroing_group_ids: tuple[int, ...],
    ) -> KVCacheBlocks:
        """Give a request its hit and the blocks that `num_slots` slots lack.

        Returns:
            The blocks behind the computed tokens, which are new.

        """
        # A prompt may come in chunks: its later ones belong behind the first.
        self._group.num_known_tokens = request.num_tokens
        is_empty = hit.blocks is self.empty_kv_cache_blocks.blocks
        if not is_empty or num_external_tokens > 0:
            self.coordinator.allocate_new_computed_blocks(
                request_id=request.request_id,
                new_computed_blocks=hit.blocks,
                num_local_computed_tokens=num_local_tokens,
                num_external_computed_tokens=num_external_tokens,
                skip_zeroing_group_ids=skip_zeroing_group_ids,
            )
        new_blocks = self._group.grow(request.request_id, num_slots)
        if new_blocks is None:
            return self.empty_kv_cache_blocks
        return self.blocks_cls((new_blocks,))

    def _cache_slots(self, request: Request, num_tokens: int) -> None:
        """Cache the blocks that `num_tokens` slots fill, but no draft tokens."""
        num_tokens = min(num_tokens, request.num_tokens)
        if num_tokens >= self._requests[request.request_id].next_cached:
            self.coordinator.cache_blocks(request, num_tokens)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        blocks = self._requests.get(request.request_id)
        if blocks is not None and num_computed_tokens >= blocks.next_cached:
            self.coordinator.cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        self._group.free(request.request_id)

    def new_step_starts(self) -> None:
        super().new_step_starts()
        self._num_steps = self._allocator.begin_step()

    def take_events(self) -> list[KVCacheEvent]:
        # The scheduler takes them once a step, when the step's output is processed,
        # and steps are processed in their order.
        if self._num_processed_steps < self._num_steps:
            self._num_processed_steps += 1
            self._allocator.process_step(self._num_processed_steps)
        return super().take_events()

    def take_kv_cache_block_copies(
        self,
    ) -> tuple[list[KVCacheBlockCopy], list[KVCacheBlock]]:
        copies, retained_blocks = super().take_kv_cache_block_copies()
        moves = self._allocator.take_copies()
        self._move_targets = {target for _, target in moves}
        return BlockMoves(moves, copies) if moves else copies, retained_blocks

    def take_new_block_ids(self) -> list[int]:
        # One that was given back within the step may hold what was moved there.
        new_block_ids = super().take_new_block_ids()
        if not self._move_targets:
            return new_block_ids
        return [id for id in new_block_ids if id not in self._move_targets]

    def create_kv_cache_blocks(
        self, blocks: tuple[Sequence[KVCacheBlock], ...]
    ) -> KVCacheBlocks:
        return self.blocks_cls(blocks) if any(blocks) else self.empty_kv_cache_blocks

    def estimate_cached_tokens(self, request: Request) -> int:
        # Later blocks cover more tokens, so the last one with a hash tells it.
        (blocks,) = self.get_blocks(request.request_id).blocks
        for i in range(len(blocks) - 1, -1, -1):
            if (num_tokens := blocks[i].block_hash_num_tokens) is not None:
                return num_tokens
        return 0


class TagmaConnectorKVCacheManager(TagmaKVCacheManager):
    """`TagmaKVCacheManager` of an engine with a KV connector.

    Most connectors read blocks of requests that have given them back: in the next
    step, or until they are told that a block is reused. What a step's moves overwrite
    they are told as well, but not of stores that they build in that very step.

    Args:
        reads_freed_blocks: Whether the connector does so.

    """

    blocks_cls = TagmaKVCacheBlockLists

    def __init__(self, *args, reads_freed_blocks: bool = True, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._allocator.keep_copies_from_freed(reads_freed_blocks)


def _block_bytes(kv_cache_config: KVCacheConfig) -> int:
    """Return the size of a block on a worker, over all of its layers."""
    num_bytes = sum(tensor.size for tensor in kv_cache_config.kv_cache_tensors)
    if num_bytes:
        return num_bytes // kv_cache_config.num_blocks
    (group,) = kv_cache_config.kv_cache_groups
    return group.kv_cache_spec.page_size_bytes * len(group.layer_names)
