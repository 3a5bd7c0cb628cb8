"""One side of a pair: a real manager, paged's or tagma's, and how it is used."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.tagma_kv_cache_manager import TagmaConnectorKVCacheManager
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.request import Request

from tools.inside.pair_turn import BLOCK_SIZE, MAX_TOKENS

LAYERS = 32  # of 64 KiB a block: the bound on moves is in bytes


@dataclass(frozen=True)
class Setting:
    """What is run.

    Args:
        backend: "paged" or "tagma".
        num_blocks: Blocks of each pool.
        prefill_share: Part of the prefill pool that requests may hold.
        decode_share: Part of the decode pool.
        token_budget: Prompt tokens that are computed in a step.
        max_prefilling: Prompts that are computed at once.
        tokens_a_step: Tokens that a request decodes in a step.
        hold_steps: The prefill side gives blocks back after one to so many steps.
        kept: Numbers of the requests whose runs are written, not just counted.
    """

    backend: str
    num_blocks: int
    prefill_share: float
    decode_share: float
    token_budget: int
    max_prefilling: int
    tokens_a_step: int
    hold_steps: int
    kept: tuple[int, ...]


class Pool:
    """One side's manager, and how it is used.

    Args:
        setting: What is run.
        share: Part of the pool that requests may hold.
    """

    def __init__(self, setting: Setting, share: float) -> None:
        self._most_live = int(share * setting.num_blocks)
        self._num_blocks = setting.num_blocks
        self.manager = _make_manager(setting)
        self.hit_tokens = 0
        self.moved_blocks = 0
        self.thread_ns = 0

    def has_room(self, num_blocks: int) -> bool:
        """Whether so many blocks may be held besides."""
        free = int(self.manager.block_pool.get_num_free_blocks())
        return self._num_blocks - free + num_blocks <= self._most_live

    def allocate(self, request: Request, tokens: int, external: bool = False) -> bool:
        """Give a request blocks for tokens to compute, or for those to be loaded.

        Args:
            request: A first call looks its prefix up; `tokens` are then all there
                are, or the budget.
            tokens: How many, with the prefix if it is the first call.
            external: Whether they are computed elsewhere.
        """
        begin = time.thread_time_ns()
        hit, num_hits = None, 0
        if request.num_computed_tokens == 0:
            hit, num_hits, *_ = self.manager.get_computed_blocks(request)
            self.hit_tokens += num_hits
            tokens -= min(num_hits, tokens)
        got = self.manager.allocate_slots(
            request,
            0 if external else tokens,
            num_hits,
            hit,
            num_external_computed_tokens=tokens if external else 0,
            delay_cache_blocks=external,
        )
        self.thread_ns += time.thread_time_ns() - begin
        if got is None:
            return False
        request.num_computed_tokens += num_hits + tokens
        return True

    def ids(self, request: Request) -> list[int]:
        """Return a request's blocks."""
        (ids,) = self.manager.get_block_ids(request.request_id)
        return list(ids)

    def begin_step(self) -> None:
        """Begin to schedule."""
        self.manager.new_step_starts()

    def end_step(self) -> None:
        """Take what the workers are told, and have it processed at once."""
        copies, _ = self.manager.take_kv_cache_block_copies()
        self.moved_blocks += len(copies)
        self.manager.take_new_block_ids()
        self.manager.take_events()


def _make_manager(setting: Setting) -> KVCacheManager:
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=8, head_size=128, dtype=torch.bfloat16
    )
    group = KVCacheGroupSpec([f"layer {number}" for number in range(LAYERS)], spec)
    config = KVCacheConfig(setting.num_blocks + 1, [], [group])  # and the null block
    settings: dict[str, Any] = dict(
        max_model_len=MAX_TOKENS,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        max_in_flight_tokens=setting.token_budget,
        enable_caching=True,
    )
    if setting.backend == "paged":
        return KVCacheManager(config, **settings)
    # As with NIXL, which holds what it reads.
    return TagmaConnectorKVCacheManager(config, reads_freed_blocks=False, **settings)
