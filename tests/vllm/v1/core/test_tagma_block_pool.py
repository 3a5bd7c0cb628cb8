# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Each method of the block pool beside upstream's, on a block in every state."""

import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

from tests.v1.core.test_prefix_caching import make_request
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock, init_none_hash
from vllm.v1.core.tagma_block_pool import TagmaBlockPool

pytestmark = [pytest.mark.cpu_test, pytest.mark.skip_global_cleanup]

BLOCK_SIZE = 16
NUM_BLOCKS = 8


class State(Enum):
    """What a block can be in."""

    FREE = "free without a hash"
    CACHED = "free with a hash"
    HELD = "held without a hash"
    HELD_CACHED = "held with a hash"
    NULL = "null"


class Probe:
    """A pool with one block in a state, and calls of the pool with that block.

    Args:
        cls: The class of the pool.
        state: The block's state.

    """

    def __init__(self, cls: type[BlockPool], state: State):
        init_none_hash(sha256)
        self.pool = cls(
            num_gpu_blocks=NUM_BLOCKS,
            enable_caching=True,
            hash_block_size=BLOCK_SIZE,
            enable_kv_cache_events=True,
        )
        self.request = make_request("a", [7] * 3 * BLOCK_SIZE, BLOCK_SIZE, sha256)
        self.block = self._block_in(state)

    def _block_in(self, state: State) -> KVCacheBlock:
        if state is State.NULL:
            return self.pool.null_block
        blocks = self.pool.get_new_blocks(1)
        if state in (State.CACHED, State.HELD_CACHED):
            self.pool.cache_full_blocks(self.request, blocks, 0, 1, BLOCK_SIZE, 0)
        if state in (State.FREE, State.CACHED):
            self.pool.free_blocks(blocks)
        return blocks[0]

    def call(self, name: str) -> Any:
        """Call a method; what it needs is told by its parameters' names."""
        values = {
            "block": self.block,
            "block_hash": self.request.block_hashes[0],
            "block_ids": {self.block.block_id},
            "block_size": BLOCK_SIZE,
            "blocks": [self.block],
            "dst_block": self.pool.blocks[NUM_BLOCKS - 1],
            "kv_cache_group_id": 0,
            "kv_cache_group_ids": [0],
            "num_blocks": 1,
            "num_cached_blocks": 0,
            "num_full_blocks": 1,
            "num_tokens": BLOCK_SIZE,
            "on_reuse": lambda block: None,
            "ordered_blocks": [self.block],
            "request": self.request,
            "src_block": self.block,
        }
        method = getattr(self.pool, name)
        needed = inspect.signature(getattr(BlockPool, name)).parameters.values()
        return method(
            *(
                values[parameter.name]
                for parameter in needed
                if parameter.name != "self"
                and parameter.default is inspect.Parameter.empty
            )
        )

    def shown(self) -> dict[str, Any]:
        """All that shows, but for which block it is: that is placement."""
        pool = self.pool
        first = self.request.block_hashes[0]
        return {
            "free": pool.get_num_free_blocks(),
            "usage": pool.get_usage(),
            "blocks": sorted(map(describe, pool.blocks[1:])),
            "null": (pool.null_block.is_null, pool.null_block.block_hash),
            "hashes": len(pool.cached_block_hash_to_block),
            "hit": describe_all(pool.get_cached_block(first, [0])),
            "block": (self.block.is_null, pool.is_block_writable(self.block)),
            "events": pool.take_events(),
        }


def describe(block: KVCacheBlock) -> tuple[int, bytes, int]:
    # Nobody maintains the null block's references.
    ref_cnt = 0 if block.is_null else block.ref_cnt
    return ref_cnt, block.block_hash or b"", block.block_hash_num_tokens or 0


def describe_all(result: Any) -> Any:
    """A result of a method, with what is known of a block in its place."""
    if isinstance(result, list):
        return [describe_all(one) for one in result]
    return describe(result) if isinstance(result, KVCacheBlock) else result


METHODS = [
    name
    for name, _ in inspect.getmembers(BlockPool, inspect.isfunction)
    if not name.startswith("_")
]
# They serve what is refused.
NOT_SERVED = {"cache_partial_block", "move_block_hashes", "unpin_blocks"}
# Upstream does not say what becomes of these.
UNDEFINED = {
    ("free_blocks", State.FREE),
    ("free_blocks", State.CACHED),
    ("cache_full_blocks", State.FREE),
    ("cache_full_blocks", State.CACHED),
    ("cache_full_blocks", State.HELD_CACHED),
}


def cases() -> Iterator:
    for name in METHODS:
        for state in State:
            if name not in NOT_SERVED and (name, state) not in UNDEFINED:
                yield pytest.param(name, state, id=f"{name}-{state.value}")


@pytest.mark.parametrize("name, state", cases())
def test_a_method_does_what_upstreams_does(name: str, state: State) -> None:
    tagma, paged = Probe(TagmaBlockPool, state), Probe(BlockPool, state)
    assert tagma.shown() == paged.shown()
    results = [describe_all(probe.call(name)) for probe in (tagma, paged)]
    assert results[0] == results[1]
    assert tagma.shown() == paged.shown()
    # And what it holds can be given back.
    for probe in (tagma, paged):
        while not probe.block.is_null and probe.block.ref_cnt:
            probe.pool.free_blocks([probe.block])
    assert tagma.shown() == paged.shown()
    tagma.pool.allocator.check_invariants()


@pytest.mark.parametrize("name", sorted(NOT_SERVED))
@pytest.mark.parametrize("state", State)
def test_a_method_for_what_is_refused_changes_nothing(name: str, state: State) -> None:
    probe = Probe(TagmaBlockPool, state)
    probe.pool.take_events()
    before = probe.shown()
    with pytest.raises(NotImplementedError, match="refused"):
        probe.call(name)
    assert probe.shown() == before


def test_blocks_are_cached_at_their_places_and_null_and_masked_ones_are_not() -> None:
    """As upstream's code passes them: a list, here with a null block."""
    shown = []
    for cls in (TagmaBlockPool, BlockPool):
        probe = Probe(cls, State.HELD)
        pool, request = probe.pool, probe.request
        blocks = [pool.null_block, *pool.get_new_blocks(2)]
        mask = [True, False, True]
        pool.cache_full_blocks(request, blocks, 0, 3, BLOCK_SIZE, 0, mask)
        shown.append([describe(block) for block in blocks])
        assert pool.get_cached_block(request.block_hashes[1], [0]) is None
        assert pool.get_cached_block(request.block_hashes[2], [0]) == [blocks[2]]
        shown.append(probe.shown())
    assert shown[:2] == shown[2:]


def test_settings_of_upstreams_pool_are_all_taken() -> None:
    paged = BlockPool(1, True, BLOCK_SIZE, enable_kv_cache_events=True, medium="x")
    tagma = TagmaBlockPool.with_settings_of(paged, NUM_BLOCKS)
    assert len(tagma.blocks) == tagma.num_gpu_blocks == NUM_BLOCKS
    for name in inspect.signature(BlockPool).parameters.keys() - {"num_gpu_blocks"}:
        assert getattr(tagma, name) == getattr(paged, name)
