# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""CPU offloading keeps and evicts what upstream's does, and places it in few runs."""

import random
from collections import Counter
from types import SimpleNamespace

import pytest

from vllm.v1.kv_cache_backend import cpu_offloading_manager_cls
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.tagma_manager import (
    CHUNKS_PER_SPARE,
    TagmaCPUOffloadingManager,
)

pytestmark = pytest.mark.skip_global_cleanup


def key(chain: int, position: int):
    return make_offload_key(f"{chain}:{position}".encode(), 0)


def count_runs(ids: list[int]) -> int:
    return sum(i == 0 or ids[i] != ids[i - 1] + 1 for i in range(len(ids)))


class Request:
    """A request as both managers see it."""

    def __init__(self, name: int, chain: int, length: int, positions: bool):
        self.keys = [key(chain, i) for i in range(length)]
        self.contexts = [ReqContext(str(name)) for _ in range(2)]
        if positions:
            for context in self.contexts:
                for i, k in enumerate(self.keys):
                    context.set_offload_key_position(k, i + 1)


class Pair:
    """Upstream's manager and ours, with as much to keep, under the same calls.

    Args:
        num_chunks: Chunks that ours has memory for.
        rng: Chooses the calls.
        settings: Of both managers.

    """

    def __init__(self, num_chunks: int, rng: random.Random, **settings):
        kept = num_chunks - num_chunks // CHUNKS_PER_SPARE
        self.upstream = CPUOffloadingManager(kept, enable_events=True, **settings)
        self.tagma = TagmaCPUOffloadingManager(
            num_chunks, enable_events=True, **settings
        )
        self.num_chunks, self.rng = num_chunks, rng
        self.requests: list[Request] = []
        self.loads: list[tuple[Request, list]] = []
        self.stores: list[tuple[Request, list]] = []
        self.places: dict[bytes, int] = {}
        self.seen: Counter[str] = Counter()
        self.num_requests = 0

    def call(self, name: str, *arguments, request: Request | None = None, **others):
        """Call both, and return what they answer: upstream's first."""
        answers = []
        for i, manager in enumerate((self.upstream, self.tagma)):
            context = (request.contexts[i],) if request else ()
            answers.append(getattr(manager, name)(*arguments, *context, **others))
        return answers

    def same(self, name: str, *arguments, request: Request | None = None, **others):
        """Call both, which must answer the same."""
        upstream, tagma = self.call(name, *arguments, request=request, **others)
        assert tagma == upstream
        return upstream

    def step(self) -> None:
        """Make one random call."""
        calls = [self.arrive, self.load, self.store, self.touch, self.finish]
        calls += [self.end_load, self.end_store] * 2
        self.reset() if self.rng.random() < 0.002 else self.rng.choice(calls)()
        self.compare()

    def arrive(self) -> None:
        if len(self.requests) < 6:
            self.num_requests += 1
            chain, length = self.rng.randrange(9), self.rng.randrange(1, 30)
            positions = self.rng.random() < 0.7
            request = Request(self.num_requests, chain, length, positions)
            self.requests.append(request)
            self.call("on_new_request", request=request)

    def some(self) -> tuple[Request, list] | None:
        """Return a request and some keys of it that lie side by side."""
        if not self.requests:
            return None
        request = self.rng.choice(self.requests)
        first = self.rng.randrange(len(request.keys))
        return request, request.keys[first : first + self.rng.randrange(1, 20)]

    def load(self) -> None:
        if chosen := self.some():
            request, keys = chosen
            found = [self.same("lookup", k, request=request) for k in keys]
            keys = [k for k, result in zip(keys, found) if result is LookupResult.HIT]
            self.seen.update(result.name for result in found)
            if keys:
                _, spec = self.call("prepare_load", keys, request=request)
                assert spec.block_ids.tolist() == [self.places[k] for k in keys]
                self.loads.append((request, keys))

    def store(self) -> None:
        if chosen := self.some():
            request, keys = chosen
            upstream, tagma = self.call("prepare_store", keys, request=request)
            if upstream is None:
                assert tagma is None
                self.seen["no room"] += 1
                return
            assert tagma.keys_to_store == upstream.keys_to_store
            assert tagma.evicted_keys == upstream.evicted_keys
            self.seen["evictions"] += len(tagma.evicted_keys)
            for k in tagma.evicted_keys:
                del self.places[k]
            self.places |= zip(tagma.keys_to_store, tagma.store_spec.block_ids.tolist())
            if tagma.keys_to_store:
                self.stores.append((request, tagma.keys_to_store))

    def touch(self) -> None:
        if chosen := self.some():
            self.call("touch", chosen[1], request=chosen[0])

    def finish(self) -> None:
        if self.requests and self.rng.random() < 0.5:
            request = self.requests.pop(self.rng.randrange(len(self.requests)))
            self.call("on_request_finished", request=request)

    def end_load(self) -> None:
        if self.loads:
            request, keys = self.loads.pop(self.rng.randrange(len(self.loads)))
            self.call("complete_load", keys, request=request)

    def end_store(self) -> None:
        if self.stores:
            request, keys = self.stores.pop(self.rng.randrange(len(self.stores)))
            success = self.rng.random() < 0.8
            self.call("complete_store", keys, request=request, success=success)
            if not success:
                self.seen["failed stores"] += 1
                for k in keys:
                    del self.places[k]

    def reset(self) -> None:
        """As upstream promises, jobs from before it are not completed."""
        self.call("reset_cache")
        self.seen["resets"] += 1
        self.loads, self.stores, self.places = [], [], {}

    def compare(self) -> None:
        upstream, tagma = self.call("take_events")
        assert list(tagma) == list(upstream)
        upstream, tagma = (stats.reduce() for stats in self.call("get_stats"))
        assert tagma == upstream
        assert len(set(self.places.values())) == len(self.places)
        held = self.tagma._allocator.stats()["held_blocks"]
        assert held == len(self.places)
        for k, place in self.places.items():
            assert self.tagma._policy.get(k).chunk_id == place < self.num_chunks


@pytest.mark.parametrize("store_threshold", [0, 2])
@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("num_chunks", [24, 2 * CHUNKS_PER_SPARE])
def test_keeps_and_evicts_what_upstreams_does(num_chunks, policy, store_threshold):
    rng = random.Random(f"{num_chunks} {policy} {store_threshold}")
    settings = dict(cache_policy=policy, store_threshold=store_threshold)
    pair = Pair(num_chunks, rng, max_tracker_size=60, **settings)
    for _ in range(2500):
        pair.step()
    pair.tagma._allocator.check_invariants()
    assert pair.tagma._allocator.take_copies() == []
    expected = {"HIT", "MISS", "HIT_PENDING", "evictions", "failed stores", "resets"}
    assert all(pair.seen[what] for what in expected), pair.seen
    assert num_chunks > 24 or store_threshold or pair.seen["no room"]


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_chunks_lie_in_few_runs(policy: str):
    """In a full pool that requests of different lengths store to, in turns."""
    num_chunks, rng = 4096, random.Random(1)
    kept = num_chunks - num_chunks // CHUNKS_PER_SPARE
    managers = (
        CPUOffloadingManager(kept, cache_policy=policy),
        TagmaCPUOffloadingManager(num_chunks, cache_policy=policy),
    )
    lengths = [rng.randrange(2, 200) for _ in range(400)]
    returns = [rng.random() < 0.3 for _ in lengths]
    runs = []
    for manager in managers:
        order, runs_of_each = random.Random(2), []
        for chain in range(0, len(lengths) - 1, 2):
            # Two requests take turns, as their prompts' chunks are computed.
            pair = [Request(c, c, lengths[c], True) for c in (chain, chain + 1)]
            if returns[chain] and chain > 8:
                old = order.randrange(chain - 8, chain)
                pair[0] = Request(chain, old, lengths[old], True)
            for half in (0, 1):
                for request in pair:
                    middle = len(request.keys) // 2
                    keys = request.keys[middle:] if half else request.keys[:middle]
                    context = request.contexts[0]
                    output = manager.prepare_store(keys, context)
                    manager.complete_store(output.keys_to_store, context)
            for request in pair:
                context = request.contexts[0]
                keys = [
                    k
                    for k in request.keys
                    if manager.lookup(k, context) is LookupResult.HIT
                ]
                spec = manager.prepare_load(keys, context)
                runs_of_each.append(count_runs(spec.block_ids.tolist()))
                manager.complete_load(keys, context)
                manager.on_request_finished(context)
        runs.append(sum(runs_of_each[100:]) / len(runs_of_each[100:]))
    assert runs[1] < 0.75 * runs[0]


def test_the_backend_chooses_the_manager():
    for backend, cls in (
        ("paged", CPUOffloadingManager),
        ("tagma", TagmaCPUOffloadingManager),
    ):
        config = SimpleNamespace(kv_cache_backend=backend)
        assert cpu_offloading_manager_cls(config, CPUOffloadingManager) is cls
