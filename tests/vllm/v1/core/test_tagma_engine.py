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
    precondition,
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
    pool = KVAllocator(num_blocks=32, max_ranges=7)
    assert (pool.num_blocks, pool.max_ranges) == (32, 7)
    assert (pool.num_free_blocks, pool.num_cache_only_blocks) == (32, 0)
    assert (pool.num_extents, pool.largest_extent) == (1, 32)
    assert (pool.copy_bound, pool.copies_left) == (3072, 4512)
    for name in ("num_blocks", "copy_bound", "copies_left"):
        with pytest.raises(AttributeError):
            setattr(pool, name, 64)
    assert KVAllocator(8).max_ranges == 256


@pytest.mark.parametrize(
    "arguments, names",
    [
        ({"num_blocks": 0}, "num_blocks must be in"),
        ({"num_blocks": -3}, "num_blocks must be in"),
        ({"num_blocks": 2**31}, "num_blocks must be in"),
        ({"num_blocks": 8, "max_ranges": -1}, "max_ranges must be in"),
    ],
)
def test_constructor_names_the_bad_argument(arguments, names):
    with pytest.raises(ValueError, match=names):
        KVAllocator(**arguments)


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
        assert pool.free_queue() and pool.take_copies() == []
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
    assert pool.stats()["block_copies"] == 0
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


def pool_that_moves():
    """A full pool whose first request can grow only where a cached block lies.

    Another cached block leaves first, and the one behind the request goes there.

    Returns:
        The pool, its index, the request and the hash of block 2, which it needs.

    """
    pool = KVAllocator(8)
    index = PrefixIndex(pool)
    request, behind, _, oldest, _ = (make_request(pool, n) for n in (2, 1, 2, 1, 2))
    block_hash, oldest_hash = hashes_of(2)
    index.insert(behind, [block_hash], 0, 1)
    index.insert(oldest, [oldest_hash], 0, 1)
    pool.release(oldest)
    pool.release(behind)
    return pool, index, request, block_hash


def test_a_moved_block_is_found_at_once_and_copied_once():
    pool, index, request, block_hash = pool_that_moves()
    assert index.find(block_hash) == 2
    pool.extend(request, 1)
    assert request.ranges() == [(0, 3)]
    assert (index.find(block_hash), pool.take_evicted()) == (5, [5])
    assert [pool.source_of(block) for block in (2, 5, 7)] == [2, 2, 7]
    assert (pool.stats()["kept_blocks"], pool.stats()["block_copies"]) == (1, 0)
    assert pool.take_copies() == [(2, 5)]
    assert pool.take_copies() == []
    assert pool.source_of(5) == 5
    assert pool.stats()["block_copies"] == 1
    with pytest.raises(ValueError, match="8 is outside the pool"):
        pool.source_of(8)


def test_moves_are_recorded_for_who_asks():
    pool, _, request, _ = pool_that_moves()
    pool.extend(request, 1)
    assert pool.take_moves() == []
    pool, _, request, _ = pool_that_moves()
    pool.record_moves(True)
    pool.extend(request, 1)
    assert pool.take_moves() == [(2, 5)]
    assert pool.take_moves() == []


def test_the_first_extend_may_rewrite_the_hit():
    pool = KVAllocator(16)
    index = PrefixIndex(pool)
    pieces, hashes = [make_request(pool, 1) for _ in range(5)], hashes_of(2)
    for piece, block_hash in zip(pieces[1:4:2], hashes):
        index.insert(piece, [block_hash], 0, 1)
        pool.release(piece)
    request = pool.new_ranges()
    pool.acquire(request, index.match(hashes))
    assert request.ranges() == [(1, 1), (3, 1)]
    view = pool.extend(request, 2)
    assert request.num_ranges == 1
    assert view.block_ids() == request.block_ids(2)
    assert index.match(hashes).block_ids() == request.block_ids(0, 2)
    assert sorted(pool.take_copies()) == list(zip((1, 3), request))


def test_steps_count_from_one_and_are_processed_in_their_order():
    pool = KVAllocator(8)
    assert [pool.begin_step() for _ in range(3)] == [1, 2, 3]
    for step in (1, 1, 3):
        pool.process_step(step)
    for step in (2, 4, -1, 2**62):
        with unchanged(pool), pytest.raises(ValueError, match=f"step {step} is proc"):
            pool.process_step(step)
    with pytest.raises(TypeError):
        pool.process_step(None)


@pytest.mark.parametrize("processed", [False, True])
def test_a_block_stays_until_the_step_that_hashed_it_is_processed(processed):
    pool, index, request, block_hash = pool_that_moves()
    holder, step = pool.new_ranges(), pool.begin_step()
    pool.acquire(holder, [2])
    index.erase(2)
    index.insert(holder, [block_hash], 0, 1)
    pool.release(holder)
    if processed:
        pool.process_step(step)
    pool.extend(request, 1)
    assert request.ranges() == ([(0, 3)] if processed else [(0, 2), (5, 1)])
    assert index.find(block_hash) == (5 if processed else 2)


@pytest.mark.parametrize(
    "bound, left, ranges",
    [(0, 0, [(0, 2), (5, 1)]), (2, 2, [(0, 3)]), (None, None, [(0, 3)])],
)
def test_a_copy_bound_of_zero_moves_nothing_and_none_is_no_bound(bound, left, ranges):
    pool, _, request, _ = pool_that_moves()
    pool.set_copy_bound(bound)
    assert (pool.copy_bound, pool.copies_left) == (bound, left)
    pool.extend(request, 1)
    assert request.ranges() == ranges
    assert pool.take_copies() == ([] if bound == 0 else [(2, 5)])


def test_a_copy_bound_is_a_count():
    pool = KVAllocator(8)
    with pytest.raises(ValueError, match="at least 0 copies, got -1"):
        pool.set_copy_bound(-1)
    with pytest.raises(TypeError):
        pool.set_copy_bound(1.5)
    assert pool.copy_bound == 3072
    pool.set_copy_bound(2**80)
    assert (pool.copy_bound, pool.copies_left) == (None, None)


def test_the_admissions_of_a_step_share_their_copies():
    pool, _, _, _ = pool_that_moves()
    pool.set_copy_bound(2)
    pool.release_blocks([3])
    admitted = pool.new_ranges()
    pool.begin_step()
    pool.extend(admitted, 2)  # In blocks 2 and 3: what is cached in 2 moves to 5.
    assert (admitted.ranges(), pool.take_copies()) == ([(2, 2)], [(2, 5)])
    assert pool.copies_left == 1
    pool.begin_step()
    assert pool.copies_left == 2


def test_copies_can_be_kept_out_of_blocks_that_were_just_given_back():
    pool, index, request, block_hash = pool_that_moves()
    pool.keep_copies_from_freed(True)
    pool.process_step(pool.begin_step())
    pool.retain_blocks([5])
    pool.release_blocks([5])  # A connector may be reading it.
    pool.retain_blocks([2])
    pool.release_blocks([2])
    pool.extend(request, 1)
    assert request.ranges() == [(0, 2), (5, 1)]
    assert index.find(block_hash) == 2
    with pytest.raises(ZeroDivisionError):
        pool.keep_copies_from_freed(_NeitherTrueNorFalse())


class _NeitherTrueNorFalse:
    def __bool__(self):
        return 1 // 0 == 0


def test_the_free_queue_is_in_the_order_of_upstreams():
    pool = KVAllocator(8)
    index = PrefixIndex(pool)
    first, second, third = (make_request(pool, n) for n in (3, 2, 1))
    assert pool.free_queue() == [-1] * 2
    index.insert(first, hashes_of(3), 0, 3)
    index.insert(second, hashes_of(1, seed=1), 0, 1)
    for request in (first, second, third):
        pool.release(request)
    # Without a hash first; a chain's tail before its head.
    assert pool.free_queue() == [-1] * 4 + [2, 1, 0, 3]
    index.erase(1)
    assert pool.free_queue() == [-1] * 4 + [2, -1, 0, 3]
    pool.acquire(first, [2])
    assert pool.free_queue() == [-1] * 5 + [0, 3]


NUM_BLOCKS = 24
EMPTY = -1


def made_at_once(memory, copies):
    """Return the memory after copies that all read before any writes."""
    after = list(memory)
    for source, target in copies:
        after[target] = memory[source]
    return after


def made_one_by_one(memory, copies):
    """Return the memory after copies made in their order.

    A copy follows the one that read what it overwrites. So only the last copy of a
    cycle finds its source overwritten: it reads what the first one has saved.
    """
    memory = list(memory)
    chains: list[list[tuple[int, int]]] = []
    for copy in copies:
        if chains and copy[1] == chains[-1][-1][0]:
            chains[-1].append(copy)
        else:
            chains.append([copy])
    is_cycle = [chain[-1][0] == chain[0][1] for chain in chains]
    assert is_cycle == sorted(is_cycle)
    for chain, cycle in zip(chains, is_cycle):
        saved = memory[chain[0][1]]
        for source, target in chain:
            memory[target] = memory[source]
        if cycle:
            memory[chain[-1][1]] = saved
    return memory


class Request:
    """A request's ranges, and what is in its blocks."""

    def __init__(self, pool):
        self.ranges = pool.new_ranges()
        self.contents: list[int] = []
        self.is_extended = False


class PoolModel(RuleBasedStateMachine):
    """What every pool promises, however it caches.

    Contents have numbers. The model knows who holds them and in which order they
    leave the cache: upstream's. Where they lie is the pool's choice, which the
    model follows, as the workers' memory does by the copies of each step.
    """

    requests = Bundle("requests")
    loose = Bundle("loose")

    def make_pool(self, pool, copy_bound, keeps_copies_away):
        self.pool = pool
        pool.set_copy_bound(copy_bound)
        pool.keep_copies_from_freed(keeps_copies_away)
        pool.record_moves(True)
        self.copy_bound, self.keeps_copies_away = copy_bound, keeps_copies_away
        self.last = 0  # The newest content.
        self.place: dict[int, int] = {}  # The blocks of contents that there are.
        self.refs: dict[int, int] = {}
        self.hashed: dict[int, int] = {}  # Cached contents: the step that did it.
        self.queue: list[int | None] = [None] * NUM_BLOCKS
        self.memory: list[int | None] = [None] * NUM_BLOCKS
        self.uncomputed: set[int] = set()
        self.freed = [0] * NUM_BLOCKS  # The step after that which gave it back.
        self.processed, self.step = 0, pool.begin_step()

    def fill(self, order):
        """Let the cache have the whole pool, in parts of four blocks.

        They are named and given back out of order.
        """
        requests = [self.new_request() for _ in order]
        for number, request in zip(order, requests):
            self.try_extend(request, 4)
            self.cache_all(request, number)
        for number in order:
            self.release(requests[number])
        self.end_step(lag=0)

    # ---- What the calls do to contents. ----

    def new_content(self):
        self.last += 1
        self.refs[self.last] = 1
        self.uncomputed.add(self.last)
        return self.last

    def content_of(self, block):
        return next((c for c, b in self.place.items() if b == block), None)

    def hold(self, content):
        if not self.refs[content]:
            self.queue.remove(content)
        self.refs[content] += 1

    def give_back(self, contents):
        for content in contents:
            self.refs[content] -= 1
            if self.refs[content]:
                continue
            self.freed[self.place[content]] = self.step + 1
            if content in self.hashed:
                self.queue.append(content)
            else:
                self.queue.insert(0, None)
                self.forget(content)

    def uncache(self, content):
        del self.hashed[content]
        if not self.refs[content]:
            self.queue[self.queue.index(content)] = None
            self.forget(content)

    def forget(self, content):
        del self.place[content], self.refs[content]
        self.uncomputed.discard(content)

    def evict(self, count):
        """Take the next blocks of the queue and return the contents lost."""
        taken, self.queue = self.queue[:count], self.queue[count:]
        evicted = [content for content in taken if content is not None]
        assert self.pool.take_evicted() == [self.place[c] for c in evicted]
        for content in evicted:
            del self.hashed[content]
            self.forget(content)
        return evicted

    def follow_moves(self, request, num_old):
        """Learn where contents lie now, those new in a request among them."""
        at = {block: content for content, block in self.place.items()}
        for source, target in self.pool.take_moves():
            assert target not in at
            at[target] = at.pop(source)
        places = {content: block for block, content in at.items()}
        ids = list(request.ranges)
        places |= zip(request.contents[num_old:], ids[num_old:])
        assert [places[content] for content in request.contents] == ids
        assert len(set(places.values())) == len(places)
        hit = set() if request.is_extended else set(request.contents[:num_old])
        for content in self.place:
            if self.place[content] != places[content]:
                self.check_move(content, places[content], content in hit)
        self.place = places

    def check_move(self, content, target, is_hit):
        """Only who admits a request may move what is held, and only for itself."""
        assert self.copy_bound != 0
        assert self.hashed[content] <= self.processed
        assert self.refs[content] == is_hit
        assert not self.keeps_copies_away or self.freed[target] <= self.processed

    # ---- Calls. ----

    def new_request(self):
        return Request(self.pool)

    def try_extend(self, request, count):
        """Return the contents evicted for it, or None if there is no room."""
        before = self.pool.dump(), list(request.ranges)
        try:
            view = self.pool.extend(request.ranges, count)
        except (OutOfBlocksError, RangeCapError) as error:
            assert (self.pool.dump(), list(request.ranges)) == before
            assert isinstance(error, RangeCapError) == (count <= len(self.queue))
            assert isinstance(error, OutOfBlocksError) or self.pool.max_ranges > 0
            return None
        evicted = self.evict(count)
        num_old = len(request.contents)
        request.contents += [self.new_content() for _ in range(count)]
        assert list(view) == list(request.ranges)[num_old:]
        self.follow_moves(request, num_old)
        request.is_extended = True
        return evicted

    def acquire_all(self, request, contents):
        had, places = list(request.ranges), [self.place[c] for c in contents]
        self.pool.acquire(request.ranges, places)
        assert list(request.ranges) == had + places
        request.contents += contents
        for content in contents:
            self.hold(content)

    def release(self, request):
        self.pool.release(request.ranges)
        assert len(request.ranges) == 0
        self.give_back(reversed(request.contents))

    @rule(request=consumes(requests))
    def end(self, request):
        self.release(request)

    @rule(target=loose, block=st.integers(0, NUM_BLOCKS - 1))
    def retain(self, block):
        """Hold any block as connectors do, an empty one too."""
        self.pool.retain_blocks([block])
        content = self.content_of(block)
        if content is None:
            self.queue.remove(None)
            content = self.new_content()
            self.place[content] = block
        else:
            self.hold(content)
        return content

    @rule(content=consumes(loose))
    def release_retained(self, content):
        self.pool.release_blocks([self.place[content]])
        self.give_back([content])

    @rule(lag=st.integers(0, 2))
    def end_step(self, lag):
        """Let the workers make the copies, then compute what is new."""
        copies = self.pool.take_copies()
        assert all(source != target for source, target in copies)
        assert len({target for _, target in copies}) == len(copies)
        memory = made_at_once(self.memory, copies)
        assert made_one_by_one(self.memory, copies) == memory
        for content in self.uncomputed:
            memory[self.place[content]] = content
        self.memory = memory
        self.uncomputed.clear()
        self.processed = max(self.processed, self.step - lag)
        self.pool.process_step(self.processed)
        self.step += 1
        assert self.pool.begin_step() == self.step

    # ---- What always holds. ----

    @invariant()
    def every_content_is_where_the_pool_says(self):
        for content in self.place.keys() - self.uncomputed:
            source = self.pool.source_of(self.place[content])
            assert self.memory[source] == content

    @invariant()
    def agrees(self):
        pool, blocks = self.pool, range(NUM_BLOCKS)
        pool.check_invariants()
        at = {block: content for content, block in self.place.items()}
        refs = [self.refs[at[b]] if b in at else 0 for b in blocks]
        assert [pool.ref_count(b) for b in blocks] == refs
        cached = [at.get(b) in self.hashed for b in blocks]
        assert [pool.is_cached(b) for b in blocks] == cached
        queue = [EMPTY if c is None else self.place[c] for c in self.queue]
        assert pool.free_queue() == queue
        assert pool.num_free_blocks == len(queue)
        assert pool.num_cache_only_blocks == len(queue) - queue.count(EMPTY)
        extents = "".join(" x"[b not in at] for b in blocks).split()
        assert pool.num_extents == len(extents)
        assert pool.largest_extent == max(map(len, extents), default=0)


copy_bounds = st.sampled_from([0, 6, None, None])
orders = st.permutations(range(NUM_BLOCKS // 4))


class AllocatorModel(PoolModel):
    """Blocks are cached by their ids."""

    requests, loose = PoolModel.requests, PoolModel.loose
    any_blocks = st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=3)

    @initialize(
        max_ranges=st.sampled_from([0, 2, 3]),
        copy_bound=copy_bounds,
        keeps_copies_away=st.booleans(),
        order=orders,
    )
    def start(self, max_ranges, copy_bound, keeps_copies_away, order):
        pool = KVAllocator(NUM_BLOCKS, max_ranges=max_ranges)
        self.make_pool(pool, copy_bound, keeps_copies_away)
        self.fill(order)

    def cache_all(self, request, number):
        for content in request.contents:
            if content not in self.hashed:
                self.pool.cache(self.place[content])
                self.hashed[content] = self.step

    def try_acquire(self, request, blocks):
        before = self.pool.dump(), list(request.ranges)
        contents = [self.content_of(block) for block in blocks]
        try:
            if None in contents:
                self.pool.acquire(request.ranges, blocks)
            else:
                self.acquire_all(request, contents)
        except (ValueError, RangeCapError) as error:
            assert (self.pool.dump(), list(request.ranges)) == before
            is_cap = isinstance(error, RangeCapError)
            assert self.pool.max_ranges > 0 if is_cap else None in contents
        else:
            assert None not in contents

    @rule(target=requests, blocks=any_blocks, count=st.integers(1, 8))
    def admit(self, blocks, count):
        request = self.new_request()
        self.try_acquire(request, blocks)
        self.try_extend(request, count)
        return request

    @rule(request=requests, count=st.integers(1, 12))
    def extend(self, request, count):
        self.try_extend(request, count)

    @rule(request=requests, blocks=any_blocks)
    def acquire(self, request, blocks):
        self.try_acquire(request, blocks)

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def cache(self, block):
        content = self.content_of(block)
        if content is None or not self.refs[content] or content in self.hashed:
            with pytest.raises(ValueError):
                self.pool.cache(block)
        else:
            self.pool.cache(block)
            self.hashed[content] = self.step

    @rule(request=requests)
    def cache_request(self, request):
        self.cache_all(request, 0)

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def uncache_block(self, block):
        content = self.content_of(block)
        if content in self.hashed:
            self.pool.uncache(block)
            self.uncache(content)
        else:
            with pytest.raises(ValueError):
                self.pool.uncache(block)


TestAllocatorModel = AllocatorModel.TestCase
TestAllocatorModel.settings = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
)


class PrefixIndexModel(PoolModel):
    """Blocks are cached under hashes: each has the contents inserted under it."""

    requests, loose = PoolModel.requests, PoolModel.loose
    # A few hashes in a few orders, so that prefixes are shared and blocks collide;
    # long enough lists that the pool must evict.
    hashes = st.one_of(
        st.lists(st.integers(0, 15), min_size=4, max_size=12),
        st.builds(lambda first: range(first, first + 10), st.integers(0, NUM_BLOCKS)),
    ).map(lambda names: [b"%032d" % name for name in names])

    @initialize(copy_bound=copy_bounds, keeps_copies_away=st.booleans(), order=orders)
    def start(self, copy_bound, keeps_copies_away, order):
        pool = KVAllocator(NUM_BLOCKS, max_ranges=0)
        self.index = PrefixIndex(pool, record_evicted=True)
        self.hash_of: dict[int, bytes] = {}
        self.found: dict[bytes, list[int]] = {}  # The first one is.
        self.make_pool(pool, copy_bound, keeps_copies_away)
        self.fill(order)

    def cache_all(self, request, number):
        hashes = [b"%032d" % (4 * number + i) for i in range(len(request.contents))]
        self.insert(request, hashes, 0, len(hashes))

    def remove(self, content):
        block_hash = self.hash_of.pop(content)
        self.found[block_hash].remove(content)
        if not self.found[block_hash]:
            del self.found[block_hash]

    def uncache(self, content):
        self.remove(content)
        super().uncache(content)

    @rule(target=requests, hashes=hashes)
    def admit(self, hashes):
        """As the manager does: find the prefix, take it, then grow behind it."""
        hit = self.index.match(hashes)
        known = itertools.takewhile(self.found.__contains__, hashes)
        contents = [self.found[block_hash][0] for block_hash in known]
        assert list(hit) == [self.place[content] for content in contents]
        request = self.new_request()
        self.acquire_all(request, contents)
        lacking = len(hashes) - len(contents)
        if not lacking or self.extend_by(request, lacking):
            self.insert(request, hashes, len(contents), len(hashes))
        return request

    def extend_by(self, request, count):
        evicted = self.try_extend(request, count)
        if evicted is None:
            return False
        lost = [self.hash_of[content] for content in evicted]
        assert self.index.take_evicted_hashes() == lost
        for content in evicted:
            self.remove(content)
        return True

    @rule(request=requests, count=st.integers(1, 4))
    def extend(self, request, count):
        self.extend_by(request, count)

    def insert(self, request, hashes, start, stop):
        contents = request.contents[start:stop]
        num_new = len(set(contents) - self.hash_of.keys())
        assert self.index.insert(request.ranges, hashes, start, stop) == num_new
        for content, block_hash in zip(contents, hashes[start:stop]):
            if self.hash_of.get(content) == block_hash:
                continue
            if content in self.hash_of:
                self.remove(content)
            self.hash_of[content] = block_hash
            self.found.setdefault(block_hash, []).append(content)
            self.hashed[content] = self.step

    @rule(request=requests, hashes=hashes, data=st.data())
    def insert_part(self, request, hashes, data):
        """Under other hashes, too: a block moves to the one that it is given."""
        end = min(len(request.contents), len(hashes))
        start = data.draw(st.integers(0, end))
        self.insert(request, hashes, start, data.draw(st.integers(start, end)))

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def erase(self, block):
        content = self.content_of(block)
        if content in self.hash_of:
            self.index.erase(block)
            self.uncache(content)
        else:
            before = self.pool.dump()
            with pytest.raises(ValueError):
                self.index.erase(block)
            assert self.pool.dump() == before

    @rule(blocks=st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=4))
    def evict_blocks(self, blocks):
        self.index.evict(blocks)
        for content in {
            self.content_of(block) for block in blocks
        } & self.hashed.keys():
            self.uncache(content)

    @precondition(lambda self: self.step % 4 == 0)
    @rule()
    def clear(self):
        self.index.clear()
        for content in list(self.hash_of):
            self.uncache(content)

    @invariant()
    def index_agrees(self):
        at = {block: content for content, block in self.place.items()}
        hashes = [self.hash_of.get(at.get(block)) for block in range(NUM_BLOCKS)]
        assert [self.index.hash_of(b) for b in range(NUM_BLOCKS)] == hashes
        assert len(self.index) == len(self.hash_of)
        assert self.index.num_hashes == len(self.found)
        for block_hash, contents in self.found.items():
            assert self.index.find(block_hash) == self.place[contents[0]]


TestPrefixIndexModel = PrefixIndexModel.TestCase
TestPrefixIndexModel.settings = TestAllocatorModel.settings
