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
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus
from vllm.v1.kv_offload.cpu.tagma_manager import TagmaCPUOffloadingManager

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


class RecordedPolicy:
    """A policy that notes what it is told and which chunks it evicts."""

    def __init__(self, policy: CachePolicy):
        self.policy = policy
        self.calls: list[tuple] = []

    def get(self, key):
        """Look a key up, which tells the policy nothing."""
        return self.policy.get(key)

    def __getattr__(self, name: str):
        method = getattr(self.policy, name)

        def call(*arguments):
            told = tuple(map(comparable, arguments))
            result = method(*arguments)
            self.calls.append((name, *told, comparable(result)))
            return result

        return call


def comparable(value):
    """Return what does not depend on places and on the objects of one manager."""
    if isinstance(value, ChunkStatus):
        return value.ref_cnt
    if isinstance(value, ReqContext):
        return value.req_id
    if isinstance(value, (list, tuple)):
        return tuple(map(comparable, value))
    return frozenset(value) if isinstance(value, set) else value


class Pair:
    """Upstream's manager and ours under the same calls.

    Args:
        num_chunks: Chunks that both have memory for.
        rng: Chooses the calls.
        settings: Of both managers.

    """

    def __init__(self, num_chunks: int, rng: random.Random, **settings):
        self.upstream = CPUOffloadingManager(num_chunks, enable_events=True, **settings)
        self.tagma = TagmaCPUOffloadingManager(
            num_chunks, enable_events=True, **settings
        )
        for manager in (self.upstream, self.tagma):
            manager._policy = RecordedPolicy(manager._policy)
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
        self.reset() if self.rng.random() < 0.001 else self.rng.choice(calls)()
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
            self.seen.update(result.name for result in found)
            lost = [k for k, hit in zip(keys, found) if hit is not LookupResult.HIT]
            keys = [k for k, hit in zip(keys, found) if hit is LookupResult.HIT]
            if lost:
                self.refuse("prepare_load", lost, request)
            if keys:
                _, spec = self.call("prepare_load", keys, request=request)
                assert spec.block_ids.tolist() == [self.places[k] for k in keys]
                self.loads.append((request, keys))

    def refuse(self, name: str, keys: list, request: Request) -> None:
        """Both refuse the call, and nothing changes."""
        for manager, context in zip((self.upstream, self.tagma), request.contexts):
            with pytest.raises(AssertionError):
                getattr(manager, name)(keys, context)
        self.seen["refused"] += 1

    def store(self) -> None:
        if chosen := self.some():
            self.offer(*chosen)

    def offer(self, request: Request, keys: list) -> None:
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
            if self.rng.random() < 0.2:
                # It has failed: the request computes and offers what it has lost.
                self.seen["failed loads"] += 1
                self.offer(request, keys)
            held = {k for _, loaded in self.loads for k in loaded}
            if idle := [k for k in keys if k not in held]:
                self.refuse("complete_load", idle, request)

    def end_store(self) -> None:
        if self.stores:
            request, keys = self.stores.pop(self.rng.randrange(len(self.stores)))
            success = self.rng.random() < 0.8
            self.call("complete_store", keys, request=request, success=success)
            if not success:
                self.seen["failed stores"] += 1
                for k in keys:
                    del self.places[k]
            if self.rng.random() < 0.2:
                # A job that ends twice changes nothing.
                self.call("complete_store", keys, request=request, success=not success)

    def reset(self) -> None:
        """As upstream promises, jobs from before it are not completed."""
        self.call("reset_cache")
        self.seen["resets"] += 1
        self.loads, self.stores, self.places = [], [], {}

    def compare(self) -> None:
        upstream, tagma = (m._policy for m in (self.upstream, self.tagma))
        assert tagma.calls == upstream.calls
        self.seen.update(name for name, *_ in tagma.calls)
        for policy in (upstream, tagma):
            policy.calls.clear()
        upstream, tagma = self.call("take_events")
        events = list(upstream)
        assert list(tagma) == events
        self.seen.update("removed" if e.removed else "stored" for e in events)
        upstream, tagma = (stats.reduce() for stats in self.call("get_stats"))
        assert tagma == upstream
        assert len(set(self.places.values())) == len(self.places)
        held = self.tagma._allocator.stats()["held_blocks"]
        assert held == len(self.places)
        in_flight = Counter(k for _, keys in self.loads for k in keys)
        in_flight.update({k: -1 for _, keys in self.stores for k in keys})
        for k, place in self.places.items():
            chunk = self.tagma._policy.get(k)
            assert chunk.chunk_id == place < self.num_chunks
            references = self.upstream._policy.get(k).ref_cnt
            assert chunk.ref_cnt == references == in_flight[k]


@pytest.mark.parametrize("store_threshold", [0, 2])
@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("num_chunks", [24, 128])
def test_keeps_and_evicts_what_upstreams_does(
    num_chunks: int, policy: str, store_threshold: int
):
    """Call by call: answers, references, events, and what the policy is told."""
    rng = random.Random(f"{num_chunks} {policy} {store_threshold}")
    settings = dict(cache_policy=policy, store_threshold=store_threshold)
    pair = Pair(num_chunks, rng, max_tracker_size=2 * num_chunks, **settings)
    for _ in range(3000):
        pair.step()
    pair.tagma._allocator.check_invariants()
    assert pair.tagma._allocator.take_copies() == []
    expected = {"HIT", "MISS", "HIT_PENDING", "evictions", "removed", "stored"}
    expected |= {"failed stores", "failed loads", "refused", "resets", "touch"}
    expected |= {"insert", "remove", "evict", "on_store_miss", "on_request_finished"}
    expected |= {"mark_evictable", "mark_non_evictable", "clear"}
    assert all(pair.seen[what] for what in expected), pair.seen
    assert num_chunks > 24 or store_threshold or pair.seen["no room"]


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_chunks_lie_in_few_runs(policy: str):
    """In a full pool that requests of different lengths store to, in turns."""
    num_chunks, rng = 4096, random.Random(1)
    managers = (
        CPUOffloadingManager(num_chunks, cache_policy=policy),
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
    assert runs[1] < 0.95 * runs[0]


def test_the_backend_chooses_the_manager():
    for backend, cls in (
        ("paged", CPUOffloadingManager),
        ("tagma", TagmaCPUOffloadingManager),
    ):
        config = SimpleNamespace(kv_cache_backend=backend)
        assert cpu_offloading_manager_cls(config, CPUOffloadingManager) is cls
