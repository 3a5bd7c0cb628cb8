# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The Python binding of the tagma range allocator.

The engine's own promises are tested in C++ (`csrc/tagma/tests`). Here: what the
binding adds, and that Python sees the engine behave like a simple model.
"""

import array
import gc
import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from vllm import tagma
from vllm.tagma import (
    CoordMap,
    KVAllocator,
    KVRanges,
    OutOfBlocksError,
    PrefixIndex,
    RangeCapError,
)

# No engine and no distributed state to clean up after each test.
pytestmark = [pytest.mark.cpu_test, pytest.mark.skip_global_cleanup]


def make_request(pool: KVAllocator, count: int) -> KVRanges:
    ranges = pool.new_ranges()
    pool.extend(ranges, count)
    return ranges


@contextmanager
def unchanged(pool: KVAllocator, *requests: KVRanges):
    """Checks that the body left the pool and the requests as they were."""
    before = pool.dump(), [request.ranges() for request in requests]
    yield
    assert (pool.dump(), [request.ranges() for request in requests]) == before
    pool.check_invariants()


def test_allocate_returns_start_and_count():
    pool = KVAllocator(8)
    assert pool.allocate(3) == (0, 3)
    assert [pool.ref_count(b) for b in range(8)] == [1, 1, 1, 0, 0, 0, 0, 0]
    pool.release_blocks([0, 1, 2])
    assert pool.num_free_blocks == pool.largest_extent == 8


def test_attributes_describe_the_pool_and_are_read_only():
    pool = KVAllocator(num_blocks=32, alignment=4, max_ranges=7)
    assert (pool.num_blocks, pool.alignment, pool.max_ranges) == (32, 4, 7)
    assert (pool.num_free_blocks, pool.num_cache_only_blocks) == (32, 0)
    assert (pool.num_extents, pool.largest_extent) == (1, 32)
    with pytest.raises(AttributeError):
        pool.num_blocks = 64
    assert KVAllocator(8).max_ranges == 256


@pytest.mark.parametrize(
    "arguments, names",
    [
        ({"num_blocks": 0}, "num_blocks must be in"),
        ({"num_blocks": -3}, "num_blocks must be in"),
        ({"num_blocks": 2**31}, "num_blocks must be in"),
        ({"num_blocks": 8, "alignment": 0}, "alignment must be at least 1"),
        ({"num_blocks": 9, "alignment": 4}, "divide num_blocks"),
        ({"num_blocks": 8, "max_ranges": -1}, "max_ranges must be in"),
    ],
)
def test_constructor_names_the_bad_argument(arguments, names):
    with pytest.raises(ValueError, match=names):
        KVAllocator(**arguments)


def test_counts_are_rounded_up_to_the_alignment():
    pool = KVAllocator(32, alignment=4)
    assert pool.allocate(5) == (0, 8)
    request = pool.new_ranges()
    assert len(pool.extend(request, 1)) == 4
    assert request[0] % 4 == 0


def test_ranges_index_like_a_sequence():
    pool = KVAllocator(40)
    first, other = make_request(pool, 3), make_request(pool, 1)
    pool.extend(first, 2)
    assert first.ranges() == [(0, 3), (4, 2)]
    assert (len(first), first.num_ranges) == (5, 2)
    assert list(first) == [first[i] for i in range(5)] == [0, 1, 2, 4, 5]
    assert [first[i] for i in range(-5, 0)] == [0, 1, 2, 4, 5]
    for index in (5, -6):
        with pytest.raises(IndexError, match="5 blocks"):
            first[index]
    assert list(other) == [3]


@pytest.mark.parametrize("start", [None, -9, -3, 0, 2, 4, 5, 99, -(2**70), 2**70])
@pytest.mark.parametrize("stop", [None, -9, -1, 0, 3, 5, 99, -(2**70), 2**70])
def test_block_ids_clamps_like_a_slice(start, stop):
    pool = KVAllocator(40)
    request, _ = make_request(pool, 3), make_request(pool, 1)
    pool.extend(request, 2)
    assert request.block_ids(start=start, stop=stop) == list(request)[start:stop]
    assert request.block_ids() == list(request)


def test_empty_ranges():
    request = KVAllocator(8).new_ranges()
    assert (len(request), request.num_ranges) == (0, 0)
    assert request.ranges() == request.block_ids() == list(request) == []
    with pytest.raises(IndexError):
        request[0]


def test_extend_returns_a_view_of_just_the_new_blocks():
    pool = KVAllocator(40)
    request = make_request(pool, 3)
    view = pool.extend(request, 2)
    assert view.ranges() == [(3, 2)]
    assert request.ranges() == [(0, 5)]
    # The view owns nothing, so no call accepts it as a request.
    for call in (
        lambda: pool.release(view),
        lambda: pool.extend(view, 1),
        lambda: pool.acquire(view, [0]),
    ):
        with unchanged(pool, request), pytest.raises(ValueError, match="view"):
            call()


def test_dropping_a_view_drops_no_reference():
    pool = KVAllocator(40)
    request = make_request(pool, 3)
    view = pool.extend(request, 2)
    with unchanged(pool, request):
        del view
    assert [pool.ref_count(b) for b in request] == [1] * 5


def test_errors_say_what_is_lacking_and_change_nothing():
    pool = KVAllocator(8, max_ranges=1)
    assert issubclass(OutOfBlocksError, RuntimeError)
    assert issubclass(RangeCapError, RuntimeError)
    blocks = [pool.allocate(1)[0] for _ in range(8)]
    pool.release_blocks([blocks[i] for i in (1, 3, 4)])
    request = pool.new_ranges()
    with unchanged(pool, request):
        with pytest.raises(OutOfBlocksError, match="4 blocks.*3 of 8"):
            pool.extend(request, 4)
        with pytest.raises(RangeCapError, match="2 ranges.*max_ranges is 1"):
            pool.extend(request, 3)
        with pytest.raises(OutOfBlocksError, match="no 3 contiguous.* has 2"):
            pool.allocate(3)
        with pytest.raises(OutOfBlocksError):
            pool.allocate(2**80)
        for count in (0, -1, -(2**80)):
            with pytest.raises(ValueError, match="count must be at least 1"):
                pool.extend(request, count)
            with pytest.raises(ValueError, match="count must be at least 1"):
                pool.allocate(count)


def test_acquire_of_a_free_block_names_it_and_changes_nothing():
    pool = KVAllocator(8)
    owner, request = make_request(pool, 4), pool.new_ranges()
    free = pytest.raises(ValueError, match="block 6 is free")
    with unchanged(pool, owner, request), free:
        pool.acquire(request, [0, 6])


def test_retaining_a_free_block_takes_it_out_of_its_extent():
    pool = KVAllocator(8)
    make_request(pool, 2)
    pool.retain_blocks([4, 4, 7])
    assert [pool.ref_count(b) for b in range(8)] == [1, 1, 0, 0, 2, 0, 0, 1]
    assert pool.num_free_blocks == 4
    assert pool.largest_extent == 2
    pool.release_blocks([4, 7, 4])
    assert pool.num_free_blocks == 6
    assert pool.largest_extent == 6
    pool.check_invariants()


def test_acquire_respects_the_range_cap():
    pool = KVAllocator(8, max_ranges=2)
    owner, request = make_request(pool, 8), pool.new_ranges()
    with unchanged(pool, owner, request), pytest.raises(RangeCapError):
        pool.acquire(request, [0, 2, 4])
    pool.acquire(request, [0, 1, 4])
    assert request.ranges() == [(0, 2), (4, 1)]


@pytest.mark.parametrize("block", [8, -1, 2**31, 2**40, -(2**80)])
def test_block_ids_outside_the_pool_are_refused(block):
    pool = KVAllocator(8)
    request = make_request(pool, 8)
    with unchanged(pool, request):
        for call in (
            lambda: pool.acquire(request, [0, block]),
            lambda: pool.retain_blocks([0, block]),
            lambda: pool.release_blocks([0, block]),
            lambda: pool.cache(block),
            lambda: pool.uncache(block),
            lambda: pool.is_cached(block),
            lambda: pool.ref_count(block),
        ):
            with pytest.raises(ValueError, match="outside the pool"):
                call()


@pytest.mark.parametrize("kind", [list, tuple, lambda ids: array.array("i", ids)])
def test_any_sequence_of_integers_names_blocks(kind):
    pool = KVAllocator(8)
    pool.allocate(4)
    pool.retain_blocks(kind([3, 0]))
    assert [pool.ref_count(b) for b in range(4)] == [2, 1, 1, 2]
    pool.release_blocks(kind([0, 3]))
    pool.retain_blocks(kind([]))
    assert [pool.ref_count(b) for b in range(4)] == [1] * 4


def test_wrong_types_are_refused():
    pool = KVAllocator(8)
    request = make_request(pool, 4)
    with unchanged(pool, request):
        for call in (
            lambda: pool.extend(request, 1.5),
            lambda: pool.extend([], 1),
            lambda: pool.extend(request),
            lambda: pool.allocate(),
            lambda: pool.acquire(request, [0, "1"]),
            lambda: pool.acquire(request, 0),
            lambda: pool.acquire(request, [0, None]),
            lambda: pool.release(None),
            lambda: pool.cache("0"),
            lambda: request["0"],
            lambda: request.block_ids("0"),
            KVAllocator,
            KVRanges,
        ):
            with pytest.raises(TypeError):
                call()


def test_ranges_of_another_pool_are_refused():
    pool, other = KVAllocator(8), KVAllocator(8)
    request = make_request(other, 2)
    with unchanged(pool), unchanged(other, request):
        for call in (
            lambda: pool.extend(request, 1),
            lambda: pool.acquire(request, []),
            lambda: pool.release(request),
        ):
            with pytest.raises(ValueError, match="another KVAllocator"):
                call()


def test_a_block_id_that_runs_code_cannot_corrupt_the_pool():
    pool = KVAllocator(8)
    request = make_request(pool, 4)

    class Releasing:
        def __index__(self):
            pool.release(request)
            return 3

    with pytest.raises(ValueError, match="block 0 is free"):
        pool.acquire(request, [0, Releasing()])
    pool.check_invariants()
    assert request.ranges() == []
    assert pool.num_free_blocks == 8


def test_release_blocks_needs_as_many_references_as_it_drops():
    pool = KVAllocator(8)
    request = make_request(pool, 4)
    pool.retain_blocks([1])
    with unchanged(pool, request), pytest.raises(ValueError, match="block 2 has no"):
        pool.release_blocks([0, 2, 1, 1, 2])
    pool.release_blocks([1, 1])
    assert pool.ref_count(1) == 0
    # Now the request lacks a reference that it should have.
    with unchanged(pool, request), pytest.raises(ValueError, match="block 1 has no"):
        pool.release(request)


@pytest.mark.parametrize("num_requests", [40_000, 70_000])
def test_a_block_is_shared_by_more_requests_than_16_bits_count(num_requests):
    pool = KVAllocator(8)
    index = PrefixIndex(pool)
    owner, hashes = make_request(pool, 2), hashes_of(1)
    index.insert(owner, hashes, 0, 1)
    requests = [pool.new_ranges() for _ in range(num_requests - 1)]
    for request in requests:
        pool.acquire(request, index.match(hashes))
    assert [pool.ref_count(b) for b in range(3)] == [num_requests, 1, 0]
    assert [pool.is_cached(b) for b in range(3)] == [True, False, False]
    # A list of ids adds its references one by one, however often it has a block.
    pool.retain_blocks([0] * num_requests)
    assert pool.ref_count(0) == 2 * num_requests
    pool.release_blocks([0] * num_requests)
    for request in (owner, *requests):
        assert pool.ref_count(0) > 0
        pool.release(request)
    assert (pool.num_free_blocks, pool.num_cache_only_blocks) == (8, 1)
    pool.check_invariants()


def test_cache_reference_is_single():
    pool = KVAllocator(8)
    request = make_request(pool, 2)
    with unchanged(pool):
        with pytest.raises(ValueError, match="block 5 has no request reference"):
            pool.cache(5)
        with pytest.raises(ValueError, match="block 0 is not cached"):
            pool.uncache(0)
    pool.cache(0)
    assert pool.is_cached(0) and not pool.is_cached(1)
    with unchanged(pool), pytest.raises(ValueError, match="block 0 is cached"):
        pool.cache(0)
    pool.release(request)
    assert (pool.num_cache_only_blocks, pool.num_free_blocks) == (1, 8)


def test_take_evicted_reports_each_eviction_once_in_order():
    pool = KVAllocator(8)
    chain = make_request(pool, 8)
    for block in chain:
        pool.cache(block)
    pool.release(chain)
    assert pool.take_evicted() == []
    make_request(pool, 3)
    assert pool.take_evicted() == [7, 6, 5]
    pool.allocate(1)
    assert pool.take_evicted() == [4]
    assert pool.take_evicted() == []


def test_chains_released_first_are_evicted_first():
    pool = KVAllocator(8)
    chains = [make_request(pool, 2) for _ in range(4)]
    blocks = [list(chain) for chain in chains]
    for i in (2, 0, 3, 1):
        pool.cache_blocks(chains[i])
        pool.release(chains[i])
    for i in (2, 0, 3, 1):
        make_request(pool, 2)
        assert pool.take_evicted() == blocks[i][::-1]


def test_equal_histories_give_equal_dumps():
    def run() -> KVAllocator:
        pool = KVAllocator(4096)
        requests = [make_request(pool, 5 + i) for i in range(20)]
        for request in requests[::3]:
            pool.release(request)
        return pool

    pool = run()
    assert pool.dump() == run().dump()
    pool.allocate(1)
    assert pool.dump() != run().dump()


def test_ranges_keep_their_pool_alive():
    pool = KVAllocator(8)
    before = sys.getrefcount(pool)
    request = make_request(pool, 3)
    assert sys.getrefcount(pool) == before + 1
    del pool
    assert request.block_ids() == [0, 1, 2]


def test_calls_do_not_leak_references():
    pool = KVAllocator(64)
    request = make_request(pool, 40)
    ids = list(range(300, 340))  # Not cached by the interpreter as small ints.
    failing = (
        lambda: pool.retain_blocks(ids),
        lambda: pool.acquire(request, ids),
        lambda: pool.extend(pool.extend(request, 1), 1),
        lambda: pool.extend(request, 100),
        lambda: pool.allocate(0),
    )

    def use_everything():
        view = pool.extend(request, 1)
        assert view.ranges() and view.block_ids() and list(view)
        pool.release(request)
        pool.extend(request, 40)
        for call in failing:
            with pytest.raises((ValueError, OutOfBlocksError)):
                call()

    objects = (pool, request, ids, ids[0], KVAllocator, KVRanges, OutOfBlocksError)

    def counts():
        gc.collect()  # What earlier tests left behind refers to the types, too.
        return [sys.getrefcount(o) for o in objects]

    use_everything()
    before = counts()
    for _ in range(50):
        use_everything()
    assert counts() == before


def hashes_of(count: int, seed: int = 0) -> list[bytes]:
    return [hashlib.sha256(f"{seed}:{i}".encode()).digest() for i in range(count)]


def test_match_returns_the_longest_cached_prefix_to_acquire():
    pool = KVAllocator(64)
    index = PrefixIndex(pool)
    request, hashes = make_request(pool, 10), hashes_of(10)
    assert index.insert(request, hashes, 0, 8) == 8
    assert index.insert(request, hashes, 0, 10) == 2
    assert len(index) == 10
    pool.release(request)
    hit = index.match(hashes[:6] + hashes_of(4, seed=1))
    assert hit.block_ids() == list(range(6))
    assert index.match(hashes, limit=3).block_ids() == [0, 1, 2]
    assert len(index.match(hashes, limit=0)) == len(index.match([])) == 0
    assert pool.count_unreferenced(hit) == 6
    other = pool.new_ranges()
    pool.acquire(other, hit)
    assert other.ranges() == [(0, 6)]
    assert [pool.ref_count(b) for b in range(10)] == [1] * 6 + [0] * 4
    assert pool.count_unreferenced(range(10)) == 4


def test_an_entry_tells_its_hash_and_its_index_in_the_request():
    pool = KVAllocator(64)
    index = PrefixIndex(pool)
    request, hashes = make_request(pool, 10), hashes_of(10)
    index.insert(request, hashes, 2, 6)
    ids = request.block_ids()
    assert [index.position_of(b) for b in ids[1:7]] == [None, 2, 3, 4, 5, None]
    assert [index.hash_of(b) for b in ids[1:7]] == [None, *hashes[2:6], None]
    copy = make_request(pool, 10)
    index.insert(copy, hashes, 0, 10)
    assert (len(index), index.num_hashes) == (14, 10)
    with pytest.raises(ValueError, match="outside the pool"):
        index.position_of(64)


@pytest.mark.parametrize("kind", [list, tuple, lambda h: _Lazy(h)])
def test_hashes_are_any_sequence_of_bytes(kind):
    pool = KVAllocator(8)
    index = PrefixIndex(pool)
    hashes = kind([b"", b"short", b"x" * 32, b"y" * 36, b"z" * 500])
    request = make_request(pool, 5)
    assert index.insert(request, hashes, 0, 5) == 5
    assert index.match(hashes).block_ids() == list(request)
    assert [index.hash_of(b) for b in request] == [hashes[i] for i in range(5)]
    assert [index.find(hashes[i]) for i in range(5)] == list(request)
    assert index.hash_of(7) is None and index.find(b"unknown") is None


class _Lazy(Sequence):
    """Hashes made on demand, as upstream's BlockHashListWithBlockSize."""

    def __init__(self, hashes):
        self.hashes = hashes

    def __len__(self):
        return len(self.hashes)

    def __getitem__(self, index):
        return self.hashes[index]


def test_a_hash_too_long_to_be_counted_is_refused():
    pool = KVAllocator(8)
    index = PrefixIndex(pool)
    request = make_request(pool, 1)
    try:
        long_hash = bytes(2**32)  # Zeros that no memory is behind.
    except MemoryError:
        pytest.skip("this process may not have 4 GiB of addresses")
    with unchanged(pool, request):
        for call in (
            lambda: index.insert(request, [long_hash], 0, 1),
            lambda: index.match([long_hash]),
            lambda: index.find(long_hash),
        ):
            with pytest.raises(ValueError, match="4294967296 bytes"):
                call()


def test_a_match_may_read_hashes_behind_its_end_but_not_take_them():
    pool = KVAllocator(8)
    index = PrefixIndex(pool)
    request = make_request(pool, 2)
    index.insert(request, hashes_of(2), 0, 2)
    with pytest.raises(TypeError):
        index.match([*hashes_of(2), None])
    assert len(index.match([*hashes_of(2), None], limit=2)) == 2


def test_evictions_can_be_forgotten_unread():
    pool = KVAllocator(4)
    index = PrefixIndex(pool)
    request = make_request(pool, 4)
    index.insert(request, hashes_of(4), 0, 4)
    pool.release(request)
    make_request(pool, 3)
    pool.clear_evicted()
    assert pool.take_evicted() == []


def test_a_part_of_a_request_is_a_view():
    pool = KVAllocator(16)
    request = make_request(pool, 4)
    make_request(pool, 4)
    pool.extend(request, 8)
    ids = request.block_ids()
    bounds = [None, *range(-13, 14)]
    for start in bounds:
        for stop in bounds:
            assert request.part(start, stop).block_ids() == ids[start:stop]
    with pytest.raises(ValueError, match="view"):
        pool.release(request.part(0, 2))


def test_eviction_removes_entries_in_the_same_call():
    pool = KVAllocator(8)
    index = PrefixIndex(pool, record_evicted=True)
    request, hashes = make_request(pool, 8), hashes_of(8)
    index.insert(request, hashes, 0, 8)
    pool.release(request)
    make_request(pool, 3)
    assert len(index) == 5
    evicted = pool.take_evicted()
    assert index.take_evicted_hashes() == [hashes[b] for b in evicted]
    assert index.take_evicted_hashes() == []
    assert all(index.hash_of(b) is None for b in evicted)
    assert len(index.match(hashes)) == 5
    pool.check_invariants()


# Fills a pool with half random hashes, half ones that Python's own hash function
# has in one bucket, and prints how many hashes a look-up is compared with, at most
# and on average: first for the random half, then for the other.
FLOOD = """
import importlib.util
import os

spec = importlib.util.spec_from_file_location("tagma", {path!r})
tagma = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tagma)
buckets = 512
half = buckets // 2
flood = []
while len(flood) < half:
    key = os.urandom({size})
    if hash(key) % buckets == 0:
        flood.append(key)
keys = [os.urandom({size}) for _ in range(half)] + flood
pool = tagma.KVAllocator(buckets)
index = tagma.PrefixIndex(pool)
request = pool.new_ranges()
pool.extend(request, buckets)
index.insert(request, keys, 0, buckets)
for part in keys[:half], keys[half:]:
    probes = [index.count_probes(key) for key in part]
    print(max(probes), sum(probes) / half)
"""


def probes_of_flood(size: int, hash_seed: str | None, *options: str):
    """Most and mean probes in a Python of its own: of random and of chosen hashes."""
    env = dict(os.environ)
    env.pop("PYTHONHASHSEED", None)
    if hash_seed is not None:
        env["PYTHONHASHSEED"] = hash_seed
    # Without the package, which takes seconds to import.
    code = FLOOD.format(path=tagma.__file__, size=size)
    output = subprocess.check_output([sys.executable, *options, "-c", code], env=env)
    (most, mean), (flood_most, flood_mean) = (
        map(float, line.split()) for line in output.splitlines()
    )
    return most, mean, flood_most, flood_mean


# The lengths of xxhash and sha256, without and with the id of a KV cache group.
@pytest.mark.parametrize("size", [16, 20, 32, 36])
@pytest.mark.parametrize("hash_seed", [None, "random"])
def test_chosen_hashes_cost_no_more_probes_than_random_ones(size, hash_seed):
    """Each process has a secret of its own, which not even `hash()` tells."""
    most, mean, flood_most, flood_mean = probes_of_flood(size, hash_seed)
    assert max(most, flood_most) <= 12
    assert flood_mean <= 1.5 * mean < 3


requires_siphash13 = pytest.mark.skipif(
    sys.hash_info.algorithm != "siphash13",
    reason="this Python hashes by another function, so that no seed is its own",
)


@requires_siphash13
@pytest.mark.parametrize("hash_seed", ["0", "1", "4294967295"])
def test_the_secret_is_pythons_where_a_hash_seed_is_set(hash_seed):
    _, _, flood_most, _ = probes_of_flood(32, hash_seed)
    assert flood_most >= 256


@pytest.mark.parametrize("option", ["-E", "-R"])
def test_a_hash_seed_that_python_leaves_aside_counts_for_nothing(option):
    _, _, flood_most, _ = probes_of_flood(32, "0", option)
    assert flood_most <= 12


def test_the_first_block_inserted_under_a_hash_is_found():
    pool = KVAllocator(8)
    index = PrefixIndex(pool)
    hashes = hashes_of(2)
    first, second = make_request(pool, 2), make_request(pool, 2)
    assert index.insert(second, hashes, 0, 2) == 2
    assert index.insert(first, hashes, 0, 2) == 2
    assert index.match(hashes).block_ids() == list(second)
    index.evict(second)
    assert index.match(hashes).block_ids() == list(first)
    pool.check_invariants()


def test_index_drops_entry_and_reference_together():
    pool = KVAllocator(8)
    index = PrefixIndex(pool)
    request = make_request(pool, 6)
    index.insert(request, hashes_of(6), 0, 6)
    index.erase(5)
    pool.uncache(4)
    index.evict([3, 3, 7])
    assert len(index) == 3
    assert [pool.is_cached(b) for b in range(8)] == [True] * 3 + [False] * 5
    with unchanged(pool), pytest.raises(ValueError, match="block 5 is not cached"):
        index.erase(5)
    pool.release(request)
    assert pool.num_cache_only_blocks == 3
    index.clear()
    assert len(index) == 0 and pool.largest_extent == 8


def test_an_indexed_pool_caches_through_its_index_only():
    pool = KVAllocator(8)
    request = make_request(pool, 2)
    pool.cache_blocks([0])
    with pytest.raises(ValueError, match="block 0 is cached already"):
        PrefixIndex(pool)
    pool.uncache(0)
    index = PrefixIndex(pool)
    with pytest.raises(ValueError, match="has a PrefixIndex already"):
        PrefixIndex(pool)
    with unchanged(pool, request):
        for call in (lambda: pool.cache(0), lambda: pool.cache_blocks(request)):
            with pytest.raises(ValueError, match="use its insert"):
                call()
        with pytest.raises(RuntimeError, match="record_evicted=True"):
            index.take_evicted_hashes()


def test_a_failed_insert_changes_nothing():
    pool = KVAllocator(8)
    index = PrefixIndex(pool)
    request, hashes = make_request(pool, 4), hashes_of(4)
    view = pool.extend(request, 1)
    index.insert(request, hashes, 0, 2)
    foreign = make_request(KVAllocator(8), 4)
    with unchanged(pool, request):
        for start, stop in ((-1, 2), (3, 2), (0, 5), (0, 2**80), (5, 5)):
            with pytest.raises(ValueError, match="0 <= start <= stop <= 4"):
                index.insert(request, hashes, start, stop)
        for ranges in (foreign, [0], None):
            with pytest.raises(TypeError, match="ranges must be a KVRanges"):
                index.insert(ranges, hashes, 0, 1)
        for bad in (hashes[:3] + ["text"], 7, [None] * 4):
            with pytest.raises(TypeError):
                index.insert(request, bad, 0, 4)
        with pytest.raises(TypeError):
            index.match([1])
        with pytest.raises(ValueError, match="limit must be at least 0"):
            index.match(hashes, limit=-1)
    pool.release_blocks([3])
    with unchanged(pool), pytest.raises(ValueError, match="block 3 has no request"):
        index.insert(request, hashes, 0, 4)
    assert len(view) == 1


def test_an_index_lives_with_its_allocator():
    pool = KVAllocator(8)
    request, hashes = make_request(pool, 2), hashes_of(2)
    index = PrefixIndex(pool)
    index.insert(request, hashes, 0, 2)
    before = sys.getrefcount(pool)
    del index
    assert sys.getrefcount(pool) == before - 1
    assert pool.is_cached(0)
    pool.check_invariants()


def test_cache_blocks_is_all_or_nothing():
    pool = KVAllocator(8)
    request = make_request(pool, 4)
    for blocks, names in (([0, 1, 5], "block 5 has no"), ([0, 1, 0], "block 0 is")):
        with unchanged(pool), pytest.raises(ValueError, match=names):
            pool.cache_blocks(blocks)
    pool.cache_blocks(request)
    assert all(pool.is_cached(b) for b in request)


def test_block_ids_into_fills_an_int32_buffer():
    pool = KVAllocator(40)
    request, _ = make_request(pool, 3), make_request(pool, 1)
    pool.extend(request, 2)
    buffer = array.array("i", [-1] * 6)
    assert request.block_ids_into(buffer) == 5
    assert buffer.tolist() == [0, 1, 2, 4, 5, -1]
    assert request.block_ids_into(memoryview(buffer)[2:4], start=-2) == 2
    assert buffer.tolist() == [0, 1, 4, 5, 5, -1]
    assert request.block_ids_into(buffer, 4, 2) == 0
    with pytest.raises(ValueError, match="room for 6 block ids, 40 are"):
        make_request(KVAllocator(40), 40).block_ids_into(buffer)
    for bad in (
        b"read only",
        bytearray(40),
        array.array("q", [0] * 9),
        array.array("I", [0] * 9),
        array.array("f", [0] * 9),
        memoryview(buffer)[::2],
        [0] * 9,
    ):
        with pytest.raises(TypeError, match="buffer of int32"):
            request.block_ids_into(bad)
    assert buffer.tolist() == [0, 1, 4, 5, 5, -1]


def test_ranges_name_blocks_of_their_own_pool_only():
    pool, other = KVAllocator(8), KVAllocator(8)
    request = make_request(pool, 4)
    pool.retain_blocks(request)
    assert [pool.ref_count(b) for b in request] == [2] * 4
    pool.release_blocks(request)
    with unchanged(pool, request), pytest.raises(ValueError, match="another KV"):
        pool.retain_blocks(make_request(other, 2))


def test_coord_map_is_the_closed_form_and_its_inverse():
    coords = CoordMap(3, 5, 4, 10)
    expected = itertools.product(range(3), range(5), range(4))
    for index, at in enumerate(expected):
        assert coords.index(*at) == index
        assert coords.offset(*at) == 10 * index
        assert coords.coords(index) == at


def test_coord_map_names_what_is_out_of_bounds():
    coords = CoordMap(num_layers=3, num_blocks=5, block_size=4, bytes_per_token=10)
    for at, names in (
        ((3, 0, 0), r"layer must be in \[0, 3\), got 3"),
        ((0, -1, 0), r"block must be in \[0, 5\), got -1"),
        ((0, 0, 2**70), r"token must be in \[0, 4\)"),
    ):
        for method in (coords.index, coords.offset):
            with pytest.raises(IndexError, match=names):
                method(*at)
    with pytest.raises(IndexError, match=r"index must be in \[0, 60\), got 60"):
        coords.coords(60)
    for bad in ((0, 1, 1, 1), (1, 1, -4, 1), (2**31, 2**31, 1, 2)):
        with pytest.raises(ValueError, match="product below"):
            CoordMap(*bad)
    assert CoordMap(2**31, 2**31, 1, 1).offset(2**31 - 1, 2**31 - 1, 0) == 2**62 - 1


def test_grow_is_extend_without_a_view():
    pool = KVAllocator(8, max_ranges=2)
    request, other = pool.new_ranges(), pool.new_ranges()
    assert pool.grow(request, 2) == 1
    assert pool.grow(request, 1) == 0
    assert pool.grow(other, 1) == 1
    assert pool.grow(request, 2) == 1
    assert request.ranges() == [(0, 3), (4, 2)]
    view = pool.extend(other, 1)
    with unchanged(pool, request):
        with pytest.raises(OutOfBlocksError, match="3 blocks.*1 of 8"):
            pool.grow(request, 3)
        with pytest.raises(ValueError, match="count must be at least 1"):
            pool.grow(request, 0)
        with pytest.raises(ValueError, match="view"):
            pool.grow(view, 1)


def test_stats_describe_the_pool():
    pool = KVAllocator(8, max_ranges=2)
    index = PrefixIndex(pool)
    first, second = make_request(pool, 2), make_request(pool, 2)
    pool.extend(first, 1)
    stats = pool.stats()
    assert {k: v for k, v in stats.items() if v and k != "ranges_per_request"} == {
        "free_blocks": 3,
        "held_blocks": 5,
        "extents": 1,
        "largest_extent": 3,
        "requests": 2,
        "spills": 1,
    }
    histogram = stats["ranges_per_request"]
    assert {k: v for k, v in histogram.items() if v} == {"1": 1, "2": 1}
    assert list(histogram)[-2:] == ["129-256", ">256"]
    index.insert(second, hashes_of(2), 0, 2)
    pool.release(second)
    assert pool.stats()["cache_only_blocks"] == 2
    make_request(pool, 5)
    assert pool.stats()["evicted_blocks"] == 2
    assert pool.stats()["window_evictions"] == 1
    with pytest.raises(RangeCapError):
        pool.acquire(pool.new_ranges(), [0, 2, 4])
    assert pool.stats()["cap_events"] == 1


def test_threads_share_a_pool_under_the_gil():
    pool = KVAllocator(4096)
    index = PrefixIndex(pool)
    interval = sys.getswitchinterval()

    def churn(seed):
        hashes = hashes_of(40, seed)
        for _ in range(100):
            request = pool.new_ranges()
            hit = index.match(hashes)
            pool.acquire(request, hit)
            if len(request) < 40:
                pool.extend(request, 40 - len(request))
            index.insert(request, hashes, 0, 40)
            pool.release(request)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(churn, range(4)))
    finally:
        sys.setswitchinterval(interval)
    pool.check_invariants()
    assert pool.num_free_blocks == 4096
    assert len(index) == pool.num_cache_only_blocks


NUM_BLOCKS = 24


class AllocatorModel(RuleBasedStateMachine):
    """The allocator against lists that are scanned for everything."""

    requests = Bundle("requests")

    @initialize(max_ranges=st.sampled_from([0, 2, 3]))
    def make_pool(self, max_ranges):
        self.max_ranges = max_ranges
        self.pool = KVAllocator(NUM_BLOCKS, max_ranges=max_ranges)
        self.refs = [0] * NUM_BLOCKS
        self.cached: set[int] = set()

    def is_free(self, block):
        return self.refs[block] == 0 and block not in self.cached

    @rule(target=requests)
    def new_request(self):
        return self.pool.new_ranges()

    @rule(request=requests, count=st.integers(1, 12))
    def extend(self, request, count):
        before, had = self.pool.dump(), list(request)
        try:
            view = self.pool.extend(request, count)
        except (OutOfBlocksError, RangeCapError) as error:
            assert self.pool.dump() == before
            assert list(request) == had
            enough = sum(ref == 0 for ref in self.refs) >= count
            assert isinstance(error, RangeCapError) == enough
            assert not enough or self.max_ranges > 0
            return
        added = list(view)
        assert len(added) == count and list(request) == had + added
        assert all(self.refs[block] == 0 for block in added)
        # What was cached there is evicted, and perhaps what built on it.
        evicted = self.pool.take_evicted()
        assert len(evicted) == len(set(evicted))
        assert set(added) & self.cached <= set(evicted) <= self.cached
        assert all(self.refs[block] == 0 for block in evicted)
        self.cached.difference_update(evicted)
        for block in added:
            self.refs[block] = 1

    @rule(request=requests, blocks=st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=3))
    def acquire(self, request, blocks):
        before, had = self.pool.dump(), list(request)
        try:
            self.pool.acquire(request, blocks)
        except ValueError:
            assert any(map(self.is_free, blocks))
            assert self.pool.dump() == before
        except RangeCapError:
            assert self.max_ranges > 0
            assert self.pool.dump() == before
        else:
            assert list(request) == had + blocks
            for block in blocks:
                self.refs[block] += 1

    @rule(request=consumes(requests))
    def release(self, request):
        blocks = list(request)
        self.pool.release(request)
        assert len(request) == 0
        for block in blocks:
            self.refs[block] -= 1

    @rule(request=requests, data=st.data())
    def retain_and_release_blocks(self, request, data):
        blocks = data.draw(st.permutations(sorted(set(request))))
        self.pool.retain_blocks(blocks)
        self.pool.release_blocks(blocks)

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def cache(self, block):
        if self.refs[block] > 0 and block not in self.cached:
            self.pool.cache(block)
            self.cached.add(block)
        else:
            with pytest.raises(ValueError):
                self.pool.cache(block)

    @rule(request=requests)
    def cache_request(self, request):
        for block in request:
            if not self.pool.is_cached(block):
                self.pool.cache(block)
                self.cached.add(block)

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def uncache(self, block):
        if block in self.cached:
            self.pool.uncache(block)
            self.cached.remove(block)
        else:
            with pytest.raises(ValueError):
                self.pool.uncache(block)

    @invariant()
    def agrees(self):
        pool = self.pool
        pool.check_invariants()
        blocks = range(NUM_BLOCKS)
        assert [pool.ref_count(b) for b in blocks] == self.refs
        assert {b for b in blocks if pool.is_cached(b)} == self.cached
        assert pool.num_free_blocks == self.refs.count(0)
        cache_only = sum(self.refs[block] == 0 for block in self.cached)
        assert pool.num_cache_only_blocks == cache_only
        free = "".join(" x"[self.is_free(b)] for b in blocks).split()
        assert pool.num_extents == len(free)
        assert pool.largest_extent == max(map(len, free), default=0)


TestAllocatorModel = AllocatorModel.TestCase
TestAllocatorModel.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
)


class PrefixIndexModel(RuleBasedStateMachine):
    """The index against a dict of lists: hash to the blocks inserted under it."""

    requests = Bundle("requests")
    # A few hashes in a few orders, so that prefixes are shared and blocks collide;
    # long enough lists that the pool must evict.
    hashes = st.lists(st.integers(0, 15), min_size=4, max_size=12).map(
        lambda names: [b"%032d" % name for name in names]
    )

    @initialize()
    def make_pool(self):
        self.pool = KVAllocator(NUM_BLOCKS, max_ranges=0)
        self.index = PrefixIndex(self.pool, record_evicted=True)
        self.refs = [0] * NUM_BLOCKS
        self.hash_of: dict[int, bytes] = {}
        self.blocks_of: dict[bytes, list[int]] = {}

    def add(self, block, block_hash):
        if self.hash_of.get(block) != block_hash:
            self.remove(block)
            self.hash_of[block] = block_hash
            self.blocks_of.setdefault(block_hash, []).append(block)

    def remove(self, block):
        if (block_hash := self.hash_of.pop(block, None)) is not None:
            self.blocks_of[block_hash].remove(block)
            if not self.blocks_of[block_hash]:
                del self.blocks_of[block_hash]

    def take_evicted(self):
        """Forget what the pool evicted, block and hash in one order."""
        evicted = self.pool.take_evicted()
        assert self.index.take_evicted_hashes() == [self.hash_of[b] for b in evicted]
        assert all(self.refs[block] == 0 for block in evicted)
        for block in evicted:
            self.remove(block)

    @rule(target=requests, hashes=hashes)
    def admit(self, hashes):
        """As the manager does: find the prefix, take it, then grow behind it."""
        hit = self.index.match(hashes)
        expected = []
        for block_hash in hashes:
            if block_hash not in self.blocks_of:
                break
            expected.append(self.blocks_of[block_hash][0])
        assert list(hit) == expected
        request = self.pool.new_ranges()
        self.pool.acquire(request, hit)
        for block in expected:
            self.refs[block] += 1
        lacking = len(hashes) - len(expected)
        try:
            added = list(self.pool.extend(request, lacking)) if lacking else []
        except OutOfBlocksError:
            assert self.refs.count(0) < lacking
            return request
        self.take_evicted()
        for block in added:
            self.refs[block] += 1
        self.insert(request, hashes, len(expected), len(hashes))
        return request

    def insert(self, request, hashes, start, stop):
        blocks = list(request)[start:stop]
        before = {block for block in blocks if block in self.hash_of}
        num_new = self.index.insert(request, hashes, start, stop)
        assert num_new == len(set(blocks) - before)
        for block, block_hash in zip(blocks, hashes[start:stop]):
            self.add(block, block_hash)

    @rule(request=requests, hashes=hashes, data=st.data())
    def insert_part(self, request, hashes, data):
        """Under other hashes, too: a block moves to the one that it is given."""
        end = min(len(request), len(hashes))
        start = data.draw(st.integers(0, end))
        self.insert(request, hashes, start, data.draw(st.integers(start, end)))

    @rule(request=consumes(requests))
    def release(self, request):
        for block in request:
            self.refs[block] -= 1
        self.pool.release(request)

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def erase(self, block):
        if block in self.hash_of:
            self.index.erase(block)
            self.remove(block)
        else:
            before = self.pool.dump()
            with pytest.raises(ValueError):
                self.index.erase(block)
            assert self.pool.dump() == before

    @rule(blocks=st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=4))
    def evict(self, blocks):
        self.index.evict(blocks)
        for block in blocks:
            self.remove(block)

    @rule()
    def clear(self):
        self.index.clear()
        self.hash_of.clear()
        self.blocks_of.clear()

    @invariant()
    def agrees(self):
        self.pool.check_invariants()
        blocks = range(NUM_BLOCKS)
        assert [self.index.hash_of(b) for b in blocks] == [
            self.hash_of.get(b) for b in blocks
        ]
        assert {b for b in blocks if self.pool.is_cached(b)} == set(self.hash_of)
        assert len(self.index) == len(self.hash_of)
        assert self.index.num_hashes == len(self.blocks_of)
        assert [self.pool.ref_count(b) for b in blocks] == self.refs
        for block_hash, holders in self.blocks_of.items():
            assert self.index.find(block_hash) == holders[0]


TestPrefixIndexModel = PrefixIndexModel.TestCase
TestPrefixIndexModel.settings = TestAllocatorModel.settings
