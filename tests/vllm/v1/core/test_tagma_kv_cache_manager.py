# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The promises of the "tagma" KV cache manager, one by one and against paged."""

import ast
import gc
import inspect
import random
import textwrap
from dataclasses import replace

import pytest
import torch

from tests.v1.core.test_prefix_caching import make_kv_cache_config, make_request
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    KVCacheBlock,
    get_block_hash,
    init_none_hash,
    maybe_convert_block_hash,
)
from vllm.v1.core.tagma_block_list import TagmaBlock
from vllm.v1.core.tagma_block_pool import TagmaBlockPool
from vllm.v1.core.tagma_kv_cache_manager import (
    TagmaConnectorKVCacheManager,
    TagmaKVCacheBlocks,
    TagmaKVCacheManager,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request
from vllm.v1.tagma_refusals import UnsupportedByTagmaError

pytestmark = [pytest.mark.cpu_test, pytest.mark.skip_global_cleanup]

BLOCK_SIZE = 16


@pytest.fixture(autouse=True)
def _init_none_hash():
    init_none_hash(sha256)


def make_manager(
    num_blocks: int,
    block_size: int = BLOCK_SIZE,
    cls: type[KVCacheManager] = TagmaKVCacheManager,
    kv_cache_config: KVCacheConfig | None = None,
    **kwargs,
) -> KVCacheManager:
    """Make a manager with `num_blocks` blocks, one of them the null block."""
    settings = {
        "max_model_len": 1 << 20,
        "scheduler_block_size": block_size,
        "hash_block_size": block_size,
    }
    return cls(
        kv_cache_config or make_kv_cache_config(block_size, num_blocks),
        **settings | kwargs,
    )


_next_token = iter(range(1 << 40))


def fresh_tokens(num_tokens: int) -> list[int]:
    """Tokens that no other prompt has."""
    return [next(_next_token) for _ in range(num_tokens)]


def request_of(
    request_id: str, tokens: int | list[int], block_size: int = BLOCK_SIZE
) -> Request:
    """A request of that prompt, or of so many fresh tokens."""
    if isinstance(tokens, int):
        tokens = fresh_tokens(tokens)
    return make_request(request_id, tokens, block_size, sha256)


def admit(
    manager: KVCacheManager, request: Request, num_tokens: int | None = None
) -> int | None:
    """Compute a request's first `num_tokens` tokens, as the scheduler does.

    Returns:
        The number of tokens hit in the prefix cache, None for lack of blocks.

    """
    computed, num_hits, _ = manager.get_computed_blocks(request)
    num_tokens = num_tokens or request.num_tokens
    num_new = num_tokens - num_hits
    if manager.allocate_slots(request, num_new, num_hits, computed) is None:
        return None
    request.num_computed_tokens = num_tokens
    return num_hits


def compute(manager: KVCacheManager, request: Request, num_tokens: int) -> bool:
    """Compute `num_tokens` more tokens of a running request."""
    if manager.allocate_slots(request, num_tokens) is None:
        return False
    request.num_computed_tokens += num_tokens
    return True


def decode(manager: KVCacheManager, request: Request, token: int = 7) -> bool:
    """Compute one more output token of a running request."""
    request.append_output_token_ids(token)
    return compute(manager, request, 1)


def preempt(manager: KVCacheManager, request: Request) -> None:
    manager.free(request)
    request.num_computed_tokens = 0


def ids_of(manager: KVCacheManager, request: Request) -> list[int]:
    return manager.get_block_ids(request.request_id)[0]


def num_ranges(manager: KVCacheManager, request: Request) -> int:
    ids = ids_of(manager, request)
    return 1 + sum(b != a + 1 for a, b in zip(ids, ids[1:]))


def num_free(manager: KVCacheManager) -> int:
    return manager.block_pool.get_num_free_blocks()


def state_of(manager: KVCacheManager) -> tuple:
    """Everything that a failed allocation must leave as it was."""
    pool = manager.block_pool
    requests = manager.coordinator.single_type_managers[0].req_to_blocks
    return (
        pool.allocator.dump(),
        {request_id: blocks.block_ids() for request_id, blocks in requests.items()},
    )


# Placement.


@pytest.mark.parametrize("num_tokens", [1, 16, 17, 16_000])
def test_a_fresh_request_holds_one_range(num_tokens):
    manager = make_manager(num_blocks=4096)
    admit(manager, request_of("a", 100))
    request = request_of("b", num_tokens)
    assert admit(manager, request) == 0
    assert len(ids_of(manager, request)) == -(-num_tokens // BLOCK_SIZE)
    assert num_ranges(manager, request) == 1


def test_requests_that_grow_in_turn_stay_one_range():
    manager = make_manager(num_blocks=4096)
    requests = [request_of(str(i), 3 * BLOCK_SIZE) for i in range(4)]
    for request in requests:
        admit(manager, request)
    for _ in range(10 * BLOCK_SIZE):
        for request in requests:
            assert decode(manager, request)
    for request in requests:
        assert len(ids_of(manager, request)) == 13
        assert num_ranges(manager, request) == 1


def test_the_chunks_of_a_prompt_stay_one_range():
    manager = make_manager(num_blocks=400, block_size=4)
    prompts = [request_of(name, 200, block_size=4) for name in "abc"]
    for prompt in prompts:
        assert admit(manager, prompt, num_tokens=40) == 0
    for _ in range(4):
        for prompt in prompts:
            assert compute(manager, prompt, 40)
    assert [num_ranges(manager, prompt) for prompt in prompts] == [1, 1, 1]


def test_new_blocks_are_returned_once_and_in_order():
    manager = make_manager(num_blocks=4096)
    request = request_of("a", 100)
    computed, _, _ = manager.get_computed_blocks(request)
    ids = manager.allocate_slots(request, 40, 0, computed).get_block_ids()[0]
    request.num_computed_tokens = 40
    ids += manager.allocate_slots(request, 60).get_block_ids()[0]
    assert ids == ids_of(manager, request)


def test_no_new_block_gives_no_block_ids():
    manager = make_manager(num_blocks=64)
    request = request_of("a", 5)
    admit(manager, request)
    new_blocks = manager.allocate_slots(request, 1)
    assert new_blocks.get_block_ids(allow_none=True) is None
    assert new_blocks.get_block_ids() == ([],)


def test_a_request_may_have_more_ranges_than_the_worker_caps():
    manager = make_manager(num_blocks=1025, enable_caching=False)
    ones = [request_of(str(i), BLOCK_SIZE) for i in range(1024)]
    for request in ones:
        assert admit(manager, request) == 0
    for request in ones:
        if ids_of(manager, request)[0] % 2:
            manager.free(request)
    request = request_of("long", 512 * BLOCK_SIZE)
    assert admit(manager, request) == 0
    assert num_ranges(manager, request) == 512
    assert num_free(manager) == 0


def test_block_objects_live_only_while_looked_at():
    manager = make_manager(num_blocks=100_000)
    request = request_of("a", 3000)
    admit(manager, request)
    manager.get_blocks("a").get_block_ids()
    assert [block.ref_cnt for block in manager.get_blocks("a").blocks[0][:2]] == [1, 1]
    alive = [o for o in gc.get_objects() if issubclass(type(o), KVCacheBlock)]
    # The null block, and the ends of the list of free blocks.
    ids = sorted(b.block_id for b in alive if b.pool is manager.block_pool)
    assert ids == [-1, -1, 0]


def test_block_lists_are_sequences_of_blocks():
    manager = make_manager(num_blocks=64)
    request = request_of("a", 5 * BLOCK_SIZE)
    admit(manager, request)
    blocks = manager.get_blocks("a").blocks[0]
    ids = ids_of(manager, request)

    def read(some):
        return [block.block_id for block in some]

    assert len(blocks) == 5
    assert read(blocks) == ids
    assert read(reversed(blocks)) == ids[::-1]
    for index in (slice(1, 3), slice(None, -1), slice(4, 1), slice(4, 1, -2)):
        assert read(blocks[index]) == ids[index]
    assert (blocks[0].block_id, blocks[-1].block_id) == (ids[0], ids[-1])
    with pytest.raises(IndexError):
        blocks[5]
    assert blocks[1:] == list(blocks)[1:]
    assert blocks[0] != blocks[1]
    both = manager.get_blocks("a") + manager.get_blocks("a")
    assert both.get_block_ids() == (ids + ids,)


def test_connectors_get_lists_of_ids():
    """They join them, and send them to other engines as JSON."""
    manager = make_manager(num_blocks=64, cls=TagmaConnectorKVCacheManager)
    request = request_of("a", 40 * BLOCK_SIZE)
    new_blocks = manager.allocate_slots(request, request.num_tokens)
    for ids in (
        new_blocks.get_block_ids()[0],
        manager.get_block_ids("a")[0],
        manager.get_block_ids_for_computed_tokens("a", 630)[0],
        manager.get_computed_blocks(request)[0].get_block_ids()[0],
    ):
        assert type(ids) is list and len(ids) > 32
    assert manager.allocate_slots(request, 1).get_block_ids(allow_none=True) is None


def test_block_ids_of_selected_groups():
    pool = make_manager(num_blocks=8).block_pool
    blocks = TagmaKVCacheBlocks((pool.blocks[2:4], ()))
    assert blocks.get_block_ids() == ([2, 3], [])
    assert blocks.get_block_ids(allow_none=True, group_ids=[0]) == ([2, 3],)
    assert blocks.get_block_ids(allow_none=True, group_ids=[1]) is None
    assert blocks.get_block_ids(group_ids=[1]) == ([],)


# Prefix cache.


@pytest.mark.parametrize("num_tokens, num_hits", [(64, 48), (65, 64), (15, 0)])
def test_a_hit_shares_full_blocks_and_recomputes_the_last_token(num_tokens, num_hits):
    manager = make_manager(num_blocks=64)
    first = request_of("first", num_tokens)
    second = request_of("second", list(first.prompt_token_ids))
    assert admit(manager, first) == 0
    free_before = num_free(manager)
    assert admit(manager, second) == num_hits
    shared = num_hits // BLOCK_SIZE
    assert ids_of(manager, second)[:shared] == ids_of(manager, first)[:shared]
    assert ids_of(manager, second)[shared:] != ids_of(manager, first)[shared:]
    assert num_free(manager) == free_before - 1
    refs = [block.ref_cnt for block in manager.get_blocks("second").blocks[0]]
    assert refs == [2] * shared + [1]


def test_a_drafter_recomputes_the_last_hit_block():
    manager = make_manager(num_blocks=64, use_eagle=True)
    first = request_of("first", 65)
    admit(manager, first)
    assert admit(manager, request_of("second", list(first.prompt_token_ids))) == 48


def test_only_full_blocks_are_hit():
    manager = make_manager(num_blocks=64)
    prompt = fresh_tokens(3 * BLOCK_SIZE)
    admit(manager, request_of("a", prompt[:-1]))
    assert admit(manager, request_of("b", prompt + [1])) == 2 * BLOCK_SIZE


def test_a_block_filled_by_decoding_is_hit():
    manager = make_manager(num_blocks=64)
    request = request_of("a", BLOCK_SIZE - 1)
    admit(manager, request)
    decode(manager, request, token=5)
    assert admit(manager, request_of("b", request.prompt_token_ids + [5, 6])) == 16


def test_a_shared_block_outlives_the_request_that_made_it():
    manager = make_manager(num_blocks=64)
    first = request_of("first", 65)
    second = request_of("second", list(first.prompt_token_ids))
    admit(manager, first)
    admit(manager, second)
    ids = ids_of(manager, second)
    manager.free(first)
    # Everything that can be had without touching `second`.
    filler = request_of("filler", num_free(manager) * BLOCK_SIZE)
    assert admit(manager, filler) == 0
    assert ids_of(manager, second) == ids
    assert not set(ids) & set(ids_of(manager, filler))


def test_each_of_several_equal_blocks_can_be_hit():
    manager = make_manager(num_blocks=64)
    prompt = fresh_tokens(2 * BLOCK_SIZE)
    equal = [request_of(str(i), prompt) for i in range(3)]
    for request in equal:
        admit(manager, request)
    longer = request_of("longer", prompt + [1])
    for request in equal:
        computed, num_hits, _ = manager.get_computed_blocks(longer)
        assert num_hits == 2 * BLOCK_SIZE
        assert computed.get_block_ids()[0][1] == ids_of(manager, request)[1]
        manager.evict_blocks({ids_of(manager, request)[1]})
    assert manager.get_computed_blocks(longer)[1] == BLOCK_SIZE


def test_caching_off_neither_stores_nor_hits():
    manager = make_manager(num_blocks=64, enable_caching=False)
    first = request_of("first", 100)
    assert admit(manager, first) == 0
    assert admit(manager, request_of("second", list(first.prompt_token_ids))) == 0
    assert manager.estimate_cached_tokens(first) == 0


@pytest.mark.parametrize("num_tokens", [10, 64, 70])
def test_cached_tokens_are_estimated_as_paged_does(num_tokens):
    tokens = fresh_tokens(num_tokens)
    estimates = []
    for cls in (TagmaKVCacheManager, KVCacheManager):
        manager = make_manager(64, cls=cls)
        request = request_of("a", tokens)
        admit(manager, request)
        estimates.append(manager.estimate_cached_tokens(request))
    assert estimates[0] == estimates[1] == num_tokens // BLOCK_SIZE * BLOCK_SIZE


def test_eviction_takes_the_tail_first_and_forgets_its_hashes():
    manager = make_manager(num_blocks=11)
    first = request_of("first", 6 * BLOCK_SIZE)
    admit(manager, first)
    first_ids = ids_of(manager, first)
    manager.free(first)
    # Four blocks are free, so three of the cached six have to go.
    other = request_of("other", 7 * BLOCK_SIZE)
    assert admit(manager, other) == 0
    assert set(first_ids[3:]) < set(ids_of(manager, other))

    again = request_of("again", first.prompt_token_ids + [1])
    computed, num_hits, _ = manager.get_computed_blocks(again)
    assert num_hits == 3 * BLOCK_SIZE
    assert computed.get_block_ids() == (first_ids[:3],)


def test_the_least_recently_freed_request_is_evicted_first():
    manager = make_manager(num_blocks=11)
    old, new = request_of("old", 5 * BLOCK_SIZE), request_of("new", 5 * BLOCK_SIZE)
    admit(manager, old)
    admit(manager, new)
    manager.free(old)
    manager.free(new)
    admit(manager, request_of("filler", 5 * BLOCK_SIZE))
    assert manager.get_computed_blocks(request_of("a", old.prompt_token_ids))[1] == 0
    assert manager.get_computed_blocks(request_of("b", new.prompt_token_ids))[1] == 64


def test_an_evicted_connector_block_is_not_hit():
    manager = make_manager(num_blocks=64)
    request = request_of("a", 4 * BLOCK_SIZE + 1)
    admit(manager, request)
    held = num_free(manager)
    manager.evict_blocks({ids_of(manager, request)[2]})
    assert num_free(manager) == held
    again = request_of("b", list(request.prompt_token_ids))
    assert admit(manager, again) == 2 * BLOCK_SIZE
    preempt(manager, request)
    preempt(manager, again)
    assert num_free(manager) == 63


def test_reset_waits_for_the_last_request_and_forgets_everything():
    manager = make_manager(num_blocks=64, log_stats=True)
    request = request_of("a", 100)
    admit(manager, request)
    assert not manager.reset_prefix_cache()
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.make_prefix_cache_stats().reset
    assert admit(manager, request_of("b", list(request.prompt_token_ids))) == 0
    # Nothing was kept: the rest of the pool is one range.
    rest = request_of("rest", num_free(manager) * BLOCK_SIZE)
    assert admit(manager, rest) == 0
    assert num_ranges(manager, rest) == 1


def test_reset_does_not_walk_the_pool(monkeypatch: pytest.MonkeyPatch):
    """A view of each block would cost half a second per million blocks."""
    manager = make_manager(num_blocks=64)
    request = request_of("a", 100)
    admit(manager, request)
    manager.free(request)
    views = []
    monkeypatch.setattr(TagmaBlock, "reset_hash", lambda block: views.append(block))
    assert manager.reset_prefix_cache()
    assert not views
    assert len(manager.block_pool.blocks) == manager.block_pool.num_gpu_blocks


# Running out of blocks.


def test_exhaustion_returns_none_and_changes_nothing():
    manager = make_manager(num_blocks=11)
    running = request_of("running", 5 * BLOCK_SIZE)
    admit(manager, running)
    cached = request_of("cached", 3 * BLOCK_SIZE)
    admit(manager, cached)
    manager.free(cached)
    before = state_of(manager)

    too_long = request_of("long", 6 * BLOCK_SIZE)
    assert admit(manager, too_long) is None
    too_long_hit = request_of("hit", cached.prompt_token_ids + fresh_tokens(64))
    assert admit(manager, too_long_hit) is None
    assert not compute(manager, running, 5 * BLOCK_SIZE + 1)
    assert state_of(manager) == before

    assert compute(manager, running, 5 * BLOCK_SIZE)
    assert num_free(manager) == 0
    assert manager.usage == 1.0


def test_a_pool_of_one_free_block():
    manager = make_manager(num_blocks=2)
    first, second = request_of("first", BLOCK_SIZE), request_of("second", 1)
    assert admit(manager, first) == 0
    assert admit(manager, second) is None
    assert not decode(manager, first)
    manager.free(first)
    assert admit(manager, second) == 0
    assert ids_of(manager, second) == [1]


def test_a_pool_of_the_null_block_only():
    manager = make_manager(num_blocks=1)
    assert admit(manager, request_of("a", 1)) is None
    assert (num_free(manager), manager.usage) == (0, 0)


def test_block_size_one():
    manager = make_manager(num_blocks=8, block_size=1)
    request = request_of("a", 3, block_size=1)
    assert admit(manager, request) == 0
    assert all(decode(manager, request) for _ in range(4))
    assert not decode(manager, request)
    manager.free(request)
    again = request_of("b", list(request.prompt_token_ids), block_size=1)
    assert admit(manager, again) == 2


@pytest.mark.parametrize("num_blocks", [0, -1])
def test_an_empty_pool_is_refused(num_blocks):
    with pytest.raises(ValueError, match="num_blocks"):
        make_manager(num_blocks)


def test_new_blocks_beyond_the_pool_are_refused():
    pool = make_manager(num_blocks=4).block_pool
    assert pool.get_new_blocks(0) == []
    with pytest.raises(ValueError, match="Cannot get 4 free blocks"):
        pool.get_new_blocks(4)
    blocks = pool.get_new_blocks(3)
    assert pool.get_num_free_blocks() == 0
    pool.touch(blocks[:1])
    pool.free_blocks(blocks)
    assert pool.get_num_free_blocks() == 2


def test_the_null_block_is_never_given_back():
    pool = make_manager(num_blocks=4).block_pool
    assert (pool.null_block.block_id, pool.null_block.is_null) == (0, True)
    pool.touch([pool.null_block])
    pool.free_blocks([pool.null_block] * 2)
    assert pool.null_block.ref_cnt == 0
    assert [block.block_id for block in pool.get_new_blocks(3)] == [1, 2, 3]


# Ends of requests.


def test_freeing_a_request_that_has_no_blocks_does_nothing():
    manager = make_manager(num_blocks=8)
    request = request_of("a", 5)
    manager.free(request)
    assert not manager.pop_blocks_for_free(request)
    assert num_free(manager) == 7


def test_abort_in_mid_prefill_returns_all_blocks_and_keeps_full_ones_cached():
    manager = make_manager(num_blocks=64)
    request = request_of("a", 10 * BLOCK_SIZE)
    admit(manager, request, num_tokens=3 * BLOCK_SIZE + 1)
    manager.free(request)
    assert num_free(manager) == 63
    again = request_of("b", list(request.prompt_token_ids))
    assert admit(manager, again) == 3 * BLOCK_SIZE


def test_a_preempted_request_resumes_on_its_own_blocks():
    manager = make_manager(num_blocks=64)
    request = request_of("a", 40)
    admit(manager, request)
    for token in range(10):
        decode(manager, request, token)
    ids = ids_of(manager, request)
    preempt(manager, request)
    assert num_free(manager) == 63
    assert admit(manager, request) == 3 * BLOCK_SIZE
    assert ids_of(manager, request)[:3] == ids[:3]


def test_deferred_blocks_stay_held_until_they_are_freed():
    manager = make_manager(num_blocks=11)
    request = request_of("a", 6 * BLOCK_SIZE)
    admit(manager, request)
    ids = ids_of(manager, request)
    blocks = manager.pop_blocks_for_free(request)
    assert [block.block_id for block in blocks] == ids
    assert manager.get_block_ids("a") == ([],)
    assert num_free(manager) == 4
    assert admit(manager, request_of("b", 5 * BLOCK_SIZE)) is None

    manager.block_pool.free_blocks(reversed(blocks))
    assert num_free(manager) == 10
    # As after free(): the tail is evicted first.
    admit(manager, request_of("c", 7 * BLOCK_SIZE))
    again = request_of("d", list(request.prompt_token_ids))
    assert manager.get_computed_blocks(again)[0].get_block_ids() == (ids[:3],)


# At the edges, step by step as paged does.


EDGES = {
    # name: number of blocks, block size, prompts
    "one free block": (2, BLOCK_SIZE, [16, 1, 16]),
    "a prompt larger than the pool": (9, BLOCK_SIZE, [200, 30, 129, 128]),
    "block size 1": (12, 1, [3, 11, 4, 12]),
    "block size 2048": (4, 2048, [2048, 4097, 6144, 1]),
    "just one block short": (8, BLOCK_SIZE, [64, 48, 16]),
}


def edge_steps(manager: KVCacheManager, block_size: int, prompts: list[int], cached):
    """Admit, decode, preempt, resume, reset and free; yield all that shows."""
    requests = []
    for i, num_tokens in enumerate(prompts):
        # Prompts share a prefix: all tokens are those of the longest.
        request = request_of(str(i), cached[:num_tokens], block_size)
        requests.append(request)
        yield "admit", admit(manager, request), num_free(manager)
        if request.num_computed_tokens:
            yield "decode", decode(manager, request), num_free(manager)
            # Reset while requests run: refused.
            yield "reset", manager.reset_prefix_cache(), manager.usage
    for request in requests:
        yield "estimate", manager.estimate_cached_tokens(request)
    for request in reversed(requests):
        preempt(manager, request)
        yield "preempt", num_free(manager)
        yield "resume", admit(manager, request), num_free(manager)
        chunk = max(request.num_tokens // 2, 1)
        preempt(manager, request)
        yield "chunk", admit(manager, request, chunk) is None, num_free(manager)
    for request in requests:  # Some in the middle of their prefill.
        manager.free(request)
        manager.free(request)
        yield "free", num_free(manager), manager.usage
    yield "reset", manager.reset_prefix_cache(), manager.usage


@pytest.mark.parametrize("enable_caching", [True, False])
@pytest.mark.parametrize("edge", EDGES)
def test_edges_are_as_paged_has_them(edge, enable_caching):
    num_blocks, block_size, prompts = EDGES[edge]
    tokens = fresh_tokens(max(prompts))
    steps = [
        edge_steps(
            make_manager(num_blocks, block_size, cls, enable_caching=enable_caching),
            block_size,
            prompts,
            tokens,
        )
        for cls in (TagmaKVCacheManager, KVCacheManager)
    ]
    shown = 0
    for tagma, paged in zip(*steps, strict=True):
        assert tagma == paged
        shown += 1
    assert shown > 4 * len(prompts)


def test_a_prompt_beyond_the_models_length_is_cached_as_far_as_it_has_blocks():
    tokens = fresh_tokens(5 * BLOCK_SIZE)
    hits = []
    for cls in (KVCacheManager, TagmaKVCacheManager):
        manager = make_manager(10, cls=cls, max_model_len=3 * BLOCK_SIZE)
        first = request_of("first", tokens)
        assert admit(manager, first) == 0
        assert len(ids_of(manager, first)) == 3
        manager.free(first)
        hits.append(admit(manager, request_of("second", tokens)))
    assert hits == [3 * BLOCK_SIZE, 3 * BLOCK_SIZE]


@pytest.mark.parametrize("watermark", [0.0, 0.2])
@pytest.mark.parametrize("has_scheduled_reqs", [False, True])
@pytest.mark.parametrize("full_sequence_must_fit", [False, True])
@pytest.mark.parametrize("reserved_blocks", [0, 3])
def test_admission_fails_exactly_when_paged_fails(
    watermark, has_scheduled_reqs, full_sequence_must_fit, reserved_blocks
):
    """Every prompt length, first chunk and hit, in a pool of 20 blocks."""
    prefix = fresh_tokens(6 * BLOCK_SIZE)
    verdicts = set()
    for num_tokens in range(1, 24 * BLOCK_SIZE, 7):
        tokens = prefix[:num_tokens] + fresh_tokens(max(num_tokens - len(prefix), 0))
        shown = []
        for cls in (TagmaKVCacheManager, KVCacheManager):
            manager = make_manager(21, cls=cls, watermark=watermark)
            first = request_of("first", prefix)
            admit(manager, first)
            manager.free(first)
            admit(manager, request_of("running", 3 * BLOCK_SIZE))
            request = request_of("a", tokens)
            computed, num_hits, _ = manager.get_computed_blocks(request)
            got = []
            for num_new in (1, 5 * BLOCK_SIZE, request.num_tokens - num_hits):
                new_blocks = manager.allocate_slots(
                    request,
                    num_new,
                    num_new_computed_tokens=num_hits,
                    new_computed_blocks=computed,
                    num_lookahead_tokens=3,
                    full_sequence_must_fit=full_sequence_must_fit,
                    reserved_blocks=reserved_blocks,
                    has_scheduled_reqs=has_scheduled_reqs,
                )
                if new_blocks is None:
                    got.append(None)
                else:
                    got.append(len(ids_of(manager, request)))
                    manager.free(request)
                    computed, num_hits, _ = manager.get_computed_blocks(request)
                got.append(num_free(manager))
            shown.append(got)
        assert shown[0] == shown[1]
        verdicts.add(None in shown[0])
    assert verdicts == {True, False}


def test_a_drafter_gets_slots_ahead_and_caches_no_draft():
    """Look-ahead slots and rejected drafts, as paged has them."""
    prompt = fresh_tokens(2 * BLOCK_SIZE)

    def run(cls):
        manager = make_manager(8, cls=cls, use_eagle=True)
        request = request_of("a", prompt)
        admit(manager, request)
        seen = []
        for step in range(40):
            drafts = step % 5
            new_blocks = manager.allocate_slots(
                request, 1 + drafts, num_lookahead_tokens=4
            )
            seen.append((new_blocks is None, num_free(manager)))
            if new_blocks is None:
                break
            # All drafts but one are rejected.
            accepted = min(drafts, 1)
            request.append_output_token_ids([step] * (1 + accepted))
            request.num_computed_tokens += 1 + accepted
            seen.append(manager.estimate_cached_tokens(request))
        manager.free(request)
        again = request_of("b", list(request.all_token_ids))
        return seen, manager.get_computed_blocks(again)[1], num_free(manager)

    assert run(TagmaKVCacheManager) == run(KVCacheManager)


def test_no_tokens_at_all_is_an_error_as_in_paged():
    for cls in (TagmaKVCacheManager, KVCacheManager):
        with pytest.raises(ValueError, match="num_new_tokens must be greater than 0"):
            make_manager(8, cls=cls).allocate_slots(request_of("a", 5), 0)


# External tokens, zeroing, events and metrics.


def test_external_tokens_get_blocks_behind_the_local_hit():
    manager = make_manager(num_blocks=64)
    first = request_of("first", 2 * BLOCK_SIZE + 1)
    admit(manager, first)
    request = request_of("a", first.prompt_token_ids[:-1] + fresh_tokens(64))
    computed, num_hits, _ = manager.get_computed_blocks(request)
    new_blocks = manager.allocate_slots(
        request, 32, num_hits, computed, num_external_computed_tokens=32
    )
    ids = ids_of(manager, request)
    assert len(ids) == 6
    assert ids[:2] == ids_of(manager, first)[:2]
    assert new_blocks.get_block_ids() == (ids[4:],)


def test_new_blocks_are_recorded_where_the_worker_zeroes_them():
    class ZeroedConfig(KVCacheConfig):
        needs_kv_cache_zeroing = True

    config = make_kv_cache_config(BLOCK_SIZE, 64)
    manager = make_manager(64, kv_cache_config=ZeroedConfig(**vars(config)))
    request = request_of("a", 40)
    admit(manager, request)
    ids = ids_of(manager, request)
    assert manager.take_new_block_ids() == ids
    assert manager.take_new_block_ids() == []
    manager.record_blocks_for_zeroing("a", BLOCK_SIZE)
    assert manager.take_new_block_ids() == ids[1:]
    # An asynchronous load writes its blocks itself.
    manager.allocate_slots(
        request_of("loaded", 40),
        num_new_tokens=0,
        num_external_computed_tokens=32,
        delay_cache_blocks=True,
        skip_zeroing_group_ids=(0,),
    )
    assert manager.take_new_block_ids() == []


def test_events_tell_what_is_cached_evicted_and_cleared():
    manager = make_manager(num_blocks=11, enable_kv_cache_events=True)
    first = request_of("first", 6 * BLOCK_SIZE)
    admit(manager, first)
    (stored,) = manager.take_events()
    assert isinstance(stored, BlockStored)
    first_hashes = [maybe_convert_block_hash(h) for h in first.block_hashes]
    assert stored.block_hashes == first_hashes
    manager.free(first)
    other = request_of("other", 7 * BLOCK_SIZE)
    admit(manager, other)
    *removed, stored = manager.take_events()
    assert all(isinstance(event, BlockRemoved) for event in removed)
    assert [event.block_hashes for event in removed] == [
        [block_hash] for block_hash in first_hashes[:2:-1]
    ]
    assert len(stored.block_hashes) == 7
    manager.free(other)
    manager.reset_prefix_cache()
    assert manager.take_events() == [AllBlocksCleared()]


def test_block_residency_is_measured_as_paged_does():
    def run(cls):
        collector = KVCacheMetricsCollector(sample_rate=1.0)
        manager = make_manager(11, cls=cls, metrics_collector=collector)
        first = request_of("first", list(range(6 * BLOCK_SIZE + 1)))
        admit(manager, first)
        again = request_of("again", list(first.prompt_token_ids))
        admit(manager, again)
        tracked = len(collector.block_metrics)
        hits = sorted(
            len(state.access_history) for state in collector.block_metrics.values()
        )
        manager.free(first)
        manager.free(again)
        # All blocks are handed out anew, those without a hash too.
        admit(manager, request_of("other", [9] * (10 * BLOCK_SIZE)))
        evicted = len(collector.drain_events())
        return tracked, hits, evicted, len(collector.block_metrics)

    assert run(TagmaKVCacheManager) == run(KVCacheManager)


# Refusals.


def _attention(cls, **kwargs):
    return cls(
        block_size=BLOCK_SIZE,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.float32,
        **kwargs,
    )


REFUSED_SPECS = {
    "no group": [],
    "two groups": [_attention(FullAttentionSpec)] * 2,
    "sliding window": [_attention(SlidingWindowSpec, sliding_window=32)],
    "chunked local": [_attention(ChunkedLocalAttentionSpec, attention_chunk_size=32)],
    "compressed MLA": [_attention(MLAAttentionSpec, tokens_per_state=4)],
    "Mamba": [MambaSpec(BLOCK_SIZE, shapes=((1,),), dtypes=(torch.float32,))],
}


@pytest.mark.parametrize("specs", REFUSED_SPECS.values(), ids=REFUSED_SPECS.keys())
def test_a_model_without_exactly_one_full_attention_group_is_refused(specs):
    groups = [KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)]
    config = replace(make_kv_cache_config(BLOCK_SIZE, 8), kv_cache_groups=groups)
    kinds = ", ".join(type(spec).__name__ for spec in specs) or "none"
    with pytest.raises(UnsupportedByTagmaError, match=kinds):
        make_manager(8, kv_cache_config=config)


def test_a_retention_interval_is_refused_as_paged_does():
    config = replace(
        make_kv_cache_config(BLOCK_SIZE, 8), prefix_cache_retention_interval=32
    )
    with pytest.raises(ValueError, match="retention"):
        make_manager(8, kv_cache_config=config)


# The contract with upstream.


def _places_blocks(method) -> bool:
    """Whether a method writes a block's references or orders the free queue."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        if node.attr == "ref_cnt" and isinstance(node.ctx, ast.Store):
            return True
        if (
            isinstance(node.value, ast.Attribute)
            and node.value.attr == "free_block_queue"
            and node.attr != "num_free_blocks"
        ):
            return True
    return False


def test_every_pool_method_that_places_blocks_is_overridden():
    """A new upstream method would work on blocks that this pool does not have."""
    inherited = {
        name
        for name, method in inspect.getmembers(BlockPool, inspect.isfunction)
        if _places_blocks(method) and getattr(TagmaBlockPool, name) is method
    }
    assert not inherited


# Against the paged manager, on the same stream of requests.


class Twins:
    """The same requests through both managers, checked after every step.

    Prompts share prefixes of whole blocks and end in fresh tokens.
    """

    def __init__(self, seed: int, num_blocks: int, block_size: int, **kwargs):
        self.rng = random.Random(seed)
        self.block_size = block_size
        self.tagma, self.paged = (
            make_manager(
                num_blocks,
                block_size,
                cls=cls,
                metrics_collector=KVCacheMetricsCollector(sample_rate=1.0),
                **kwargs,
            )
            for cls in (TagmaKVCacheManager, KVCacheManager)
        )
        self.prefixes = [fresh_tokens(8 * block_size) for _ in range(4)]
        self.waiting: list[tuple[Request, Request]] = []
        self.running: list[tuple[Request, Request]] = []
        self.hits: list[int] = []
        self.num_preemptions = 0
        self.num_copies = 0
        # What the worker would have written to each block, None if not full.
        self.written: dict[int, BlockHash | None] = {}

    def both(self, step, pair: tuple[Request, Request]) -> tuple:
        outcomes = step(self.tagma, pair[0]), step(self.paged, pair[1])
        assert num_free(self.tagma) == num_free(self.paged)
        copies, _ = self.tagma.take_kv_cache_block_copies()
        written = {
            copy.dst_block_id: self.written[copy.src_block_id] for copy in copies
        }
        self.written.update(written)
        self.num_copies += len(copies)
        self.compare_residency()
        return outcomes

    def compare_residency(self) -> None:
        """The sample of every cached block goes where that goes."""
        accesses, paged_accesses = (
            sorted(
                (block_hash, len(sample.access_history))
                for block_id, sample in manager.metrics_collector.block_metrics.items()
                if (block_hash := manager.block_pool.blocks[block_id].block_hash)
            )
            for manager in (self.tagma, self.paged)
        )
        assert accesses == paged_accesses

    def arrive(self, name: str) -> None:
        shared = self.rng.choice(self.prefixes)
        shared = shared[: self.rng.randrange(9) * self.block_size]
        prompt = shared + fresh_tokens(self.rng.randrange(1, 4 * self.block_size))
        pair = tuple(request_of(name, prompt, self.block_size) for _ in range(2))
        self.waiting.append(pair)

    def admit_first(self) -> None:
        pair = self.waiting[0]
        hits, paged_hits = self.both(admit, pair)
        assert hits == paged_hits
        if hits is None:
            return
        self.hits.append(hits)
        self.running.append(self.waiting.pop(0))
        num_hit_blocks = hits // self.block_size
        hit_ids = ids_of(self.tagma, pair[0])[:num_hit_blocks]
        for block_id, block_hash in zip(hit_ids, pair[0].block_hashes):
            assert self.written[block_id] == block_hash
            key = self.tagma.block_pool.blocks[block_id].block_hash
            assert get_block_hash(key) == block_hash
        self.write(pair[0], num_hit_blocks)

    def write(self, request: Request, start: int) -> None:
        new_ids = ids_of(self.tagma, request)[start:]
        self.written.update(dict.fromkeys(new_ids))
        self.written.update(zip(new_ids, request.block_hashes[start:]))

    def decode_all(self) -> None:
        for pair in list(self.running):
            if pair not in self.running:
                continue
            (token,) = fresh_tokens(1)
            for request in pair:
                request.append_output_token_ids(token)
            self.compute_last_token(pair)

    def compute_last_token(self, pair: tuple[Request, Request]) -> None:
        """As in the scheduler, lack of blocks preempts the newest request."""
        start = pair[0].num_computed_tokens // self.block_size
        while pair in self.running:
            done, paged_done = self.both(lambda m, r: compute(m, r, 1), pair)
            assert done == paged_done
            if done:
                self.write(pair[0], start)
                return
            self.waiting.insert(0, self.running.pop())
            self.both(preempt, self.waiting[0])
            self.num_preemptions += 1

    def finish_any(self) -> None:
        pair = self.running.pop(self.rng.randrange(len(self.running)))
        self.both(lambda manager, request: manager.free(request), pair)

    def run(self, num_steps: int) -> None:
        for step in range(num_steps):
            self.tagma.new_step_starts()
            action = self.rng.random()
            if action < 0.4:
                self.arrive(str(step))
            if self.waiting:
                self.admit_first()
            if self.running and action < 0.8:
                self.decode_all()
            elif self.running:
                self.finish_any()
            assert self.tagma.take_events() == self.paged.take_events()
        while self.running:
            self.finish_any()
        self.tagma.block_pool.allocator.check_invariants()
        assert self.tagma.reset_prefix_cache() and self.paged.reset_prefix_cache()


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("seed", range(3))
def test_hits_and_free_counts_equal_paged_without_evictions(seed, block_size):
    twins = Twins(seed, num_blocks=10_000, block_size=block_size)
    twins.run(num_steps=200)
    assert any(twins.hits)
    assert twins.num_preemptions == 0


@pytest.mark.parametrize("num_blocks", [24, 200])
@pytest.mark.parametrize("seed", range(5))
def test_hits_and_events_equal_paged_while_blocks_move(seed, num_blocks):
    twins = Twins(
        seed, num_blocks=num_blocks, block_size=4, enable_kv_cache_events=True
    )
    twins.run(num_steps=400)
    assert any(twins.hits)
    assert twins.num_preemptions > 0
    assert twins.num_copies > 0


@pytest.mark.parametrize("alignment", [None, 576])
def test_dense_mla_in_one_group_is_as_paged(alignment):
    """Its blocks differ in bytes only, with or without padding to an alignment."""
    spec = _attention(MLAAttentionSpec, alignment=alignment)
    group = KVCacheGroupSpec(["layer"], spec)
    config = replace(make_kv_cache_config(BLOCK_SIZE, 64), kv_cache_groups=[group])
    twins = Twins(0, num_blocks=64, block_size=BLOCK_SIZE, kv_cache_config=config)
    twins.run(num_steps=200)
    assert any(twins.hits)
