"""Both managers, over a pool that has served for a while."""

import random
from typing import Any

import torch
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.tagma_kv_cache_manager import TagmaKVCacheManager
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.request import Request

from tools.inside.request import Hasher, make_request, random_hashes
from tools.inside.setting import BLOCK_SIZE, DECODING, MAX_TOKENS, POOL_BLOCKS

MANAGERS = {"paged": KVCacheManager, "tagma": TagmaKVCacheManager}


def make_cache_config() -> KVCacheConfig:
    """Return the pool: one full-attention group."""
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheConfig(POOL_BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])


def make_manager(backend: str, caching: bool) -> KVCacheManager:
    """Return a manager whose pool has served for a while and is free again."""
    manager = MANAGERS[backend](
        make_cache_config(),
        max_model_len=MAX_TOKENS,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        max_in_flight_tokens=8192,
        enable_caching=caching,
    )
    use_up(manager, random_hashes() if caching else None)
    return manager


def use_up(manager: KVCacheManager, hasher: Hasher | None) -> None:
    """Fill the pool as serving does, then free it out of order.

    Requests get half of their blocks at once and take turns in getting the rest,
    so that paged's queue of free blocks is as mixed as after long serving. With a
    hasher, every block is then cached.
    """
    rng = random.Random(0)

    def compute(request: Request, num_blocks: int) -> None:
        require(manager.allocate_slots(request, num_blocks * BLOCK_SIZE))
        request.num_computed_tokens += num_blocks * BLOCK_SIZE

    requests: list[Request] = []
    while free := manager.block_pool.get_num_free_blocks():
        turns = []
        for _ in range(DECODING):
            size = min(free, rng.randrange(1, 256))
            if not size:
                break
            free -= size
            requests.append(make_request(size * BLOCK_SIZE, hasher))
            compute(requests[-1], size - size // 2)
            turns += [requests[-1]] * (size // 2)
        rng.shuffle(turns)
        for request in turns:
            compute(request, 1)
    rng.shuffle(requests)
    for request in requests:
        manager.free(request)


def require(blocks: Any) -> None:
    """Stop if an allocation failed: nothing here asks for too much."""
    if blocks is None:
        raise RuntimeError("the pool is too small")
