# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What stays cached with the "tagma" backend is what upstream's pool keeps.

A million random operations on both pools: after each one the blocks that nobody holds
are in the same order, by their hashes, and the same KV events were sent, whatever was
moved. Where a block lies is a pool's own choice.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile

import pytest

from tests.v1.core.scheduler_driver import token_at
from vllm.distributed.kv_events import BlockRemoved
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    KVCacheBlock,
    get_block_hash,
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.tagma_block_list import TagmaRequestBlocks
from vllm.v1.core.tagma_block_pool import TagmaBlockPool
from vllm.v1.request import Request

pytestmark = [pytest.mark.cpu_test, pytest.mark.skip_global_cleanup]

NUM_BLOCKS = 25  # the null block among them
BLOCK_SIZE = 2
MOST_BLOCKS = 10  # of a request
OPERATIONS = 250_000


@dataclass
class Running:
    """A request's blocks in both pools, of which the first `num_cached` have hashes."""

    request: Request
    paged: list[KVCacheBlock]
    tagma: TagmaRequestBlocks
    num_cached: int


class PoolPair:
    """The same operations on both pools.

    Args:
        seed: Of the operations.
        copy_bound: How many copies an admission may make; None: any number.

    """

    def __init__(self, seed: int, copy_bound: int | None):
        self.rng = random.Random(seed)
        settings = {
            "enable_caching": True,
            "hash_block_size": BLOCK_SIZE,
            "enable_kv_cache_events": True,
        }
        self.paged = BlockPool(NUM_BLOCKS, **settings)
        self.tagma = TagmaBlockPool(NUM_BLOCKS, **settings)
        self.allocator = self.tagma.allocator
        self.allocator.set_copy_bound(copy_bound)
        self.step = self.allocator.begin_step()
        self.conversations = list(make_requests())
        self.running: list[Running] = []
        self.watched: list[tuple[KVCacheBlock, KVCacheBlock]] = []
        self.num_copies = self.num_hits = self.num_removed = 0
        self.operations: tuple[tuple[Callable[[], None], int], ...] = (
            (self.admit, 30),
            (self.grow, 20),
            (self.cache, 20),
            (self.free, 14),
            (self.end_step, 10),
            (self.watch, 2),
            (self.unwatch, 2),
            (self.evict, 2),
            (self.walk, 2),
        )

    def run(self, operations: int) -> None:
        """Do random operations, and compare the pools after each."""
        calls, weights = zip(*self.operations)
        for number, call in enumerate(
            self.rng.choices(calls, weights, k=operations), start=1
        ):
            call()
            self.compare()
            if number % 10_000 == 0:
                self.reset()
                self.compare()

    def compare(self) -> None:
        free = self.paged.free_block_queue.get_all_free_blocks()
        hash_of = self.tagma.index.hash_of
        paged = [
            block.block_hash and get_block_hash(block.block_hash) for block in free
        ]
        tagma = [hash_of(b) if b >= 0 else None for b in self.allocator.free_queue()]
        assert tagma == paged
        events = self.paged.take_events()
        assert self.tagma.take_events() == events
        self.num_removed += sum(isinstance(event, BlockRemoved) for event in events)

    def any_running(self) -> Running | None:
        return self.rng.choice(self.running) if self.running else None

    def any_cached(self) -> tuple[KVCacheBlock, KVCacheBlock] | None:
        hashes = self.rng.choice(self.conversations).block_hashes
        block_hash = self.rng.choice(hashes)
        paged = self.paged.get_cached_block(block_hash, [0])
        tagma = self.tagma.get_cached_block(block_hash, [0])
        assert (paged is None) == (tagma is None)
        return (paged[0], tagma[0]) if paged and tagma else None

    # ---- Operations. ----

    def admit(self) -> None:
        """Look a prefix up, take it, and blocks behind it."""
        request = self.rng.choice(self.conversations)
        hashes = request.block_hashes
        most = self.rng.randint(0, len(hashes))
        found = (self.paged.get_cached_block(key, [0]) for key in hashes[:most])
        hit = [blocks[0] for blocks in takewhile(bool, found)]
        cached = self.tagma.get_cached_prefix(hashes, most)
        assert len(cached) == len(hit)
        room = self.paged.get_num_free_blocks() - sum(b.ref_cnt == 0 for b in hit)
        if room < 1:
            return self.free()
        running = Running(request, hit, TagmaRequestBlocks(self.tagma), len(hit))
        self.num_hits += len(hit)
        self.paged.touch(hit)
        self.tagma.acquire(running.tagma, cached)
        self.extend(running, self.rng.randint(1, min(room, MOST_BLOCKS)))
        self.running.append(running)

    def grow(self) -> None:
        room = self.paged.get_num_free_blocks()
        if room == 0:
            return self.free()
        if running := self.any_running():
            self.extend(running, min(room, self.rng.choice((1, 1, 1, 2, 5))))

    def extend(self, running: Running, count: int) -> None:
        running.paged += self.paged.get_new_blocks(count)
        self.tagma.grow(running.tagma, count)

    def cache(self) -> None:
        running = self.any_running()
        if running is None:
            return self.admit()
        most = min(len(running.paged), len(running.request.block_hashes))
        if most <= running.num_cached:
            return self.grow()
        num_full = self.rng.randint(running.num_cached + 1, most)
        span = (running.num_cached, num_full, BLOCK_SIZE, 0)
        self.paged.cache_full_blocks(running.request, running.paged, *span)
        self.tagma.cache_full_blocks(running.request, running.tagma, *span)
        running.num_cached = num_full

    def free(self) -> None:
        if running := self.any_running():
            self.end(running)

    def end(self, running: Running) -> None:
        self.running.remove(running)
        self.paged.free_blocks(reversed(running.paged))
        self.tagma.free_blocks(reversed(running.tagma))

    def watch(self) -> None:
        """Hold a cached block as connectors do."""
        if blocks := self.any_cached():
            self.paged.touch(blocks[:1])
            self.tagma.touch(blocks[1:])
            self.watched.append(blocks)

    def unwatch(self) -> None:
        if self.watched:
            paged, tagma = self.watched.pop()
            self.paged.free_blocks([paged])
            self.tagma.free_blocks([tagma])

    def evict(self) -> None:
        """Strip a block of its hash, as when it was loaded badly."""
        if blocks := self.any_cached():
            self.paged.evict_blocks({blocks[0].block_id})
            self.tagma.evict_blocks({blocks[1].block_id})

    def walk(self) -> None:
        """Walk the free blocks as lazy offloading does, from any of them on."""
        queue = self.tagma.free_block_queue
        blocks = queue.get_all_free_blocks()
        assert [b.block_hash for b in blocks] == [
            b.block_hash for b in self.paged.free_block_queue.get_all_free_blocks()
        ]
        assert {b.block_id for b in blocks} == {
            b.block_id for b in self.tagma.blocks if not (b.ref_cnt or b.is_null)
        }
        assert len(blocks) == queue.num_free_blocks
        cursor = self.rng.randrange(-1, len(blocks))
        link = blocks[cursor] if cursor >= 0 else queue.fake_free_list_head
        after = queue.iter_blocks_after(blocks[cursor] if cursor >= 0 else None)
        for block in blocks[cursor + 1 :]:
            link = link.next_free_block
            assert link == next(after) == block
        assert link.next_free_block is queue.fake_free_list_tail
        assert next(after, None) is None

    def end_step(self) -> None:
        self.num_copies += len(self.allocator.take_copies())
        self.allocator.process_step(self.step - self.rng.randint(0, 1))
        self.step = self.allocator.begin_step()

    def reset(self) -> None:
        while self.running:
            self.end(self.running[0])
        while self.watched:
            self.unwatch()
        assert self.paged.reset_prefix_cache() and self.tagma.reset_prefix_cache()


def make_requests() -> Iterator[Request]:
    """Make requests with common prefixes."""
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    for conversation in range(8):
        yield Request(
            request_id=str(conversation),
            prompt_token_ids=[
                token_at(conversation, position)
                for position in range(MOST_BLOCKS * BLOCK_SIZE)
            ],
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=hasher,
        )


@pytest.mark.parametrize(
    ("seed", "copy_bound"),
    [(1, None), (2, None), (3, 8), (4, 0)],
    ids=["any number of copies", "another seed", "few copies", "no copies"],
)
def test_residency_is_that_of_upstreams_pool(seed: int, copy_bound: int | None) -> None:
    init_none_hash(sha256)
    pair = PoolPair(seed, copy_bound)
    pair.run(OPERATIONS)
    pair.allocator.check_invariants()
    print(f"{pair.num_copies=} {pair.num_hits=} {pair.num_removed=}")
    assert min(pair.num_hits, pair.num_removed) > OPERATIONS // 10
    assert (pair.num_copies > OPERATIONS // 20) == (copy_bound != 0)
