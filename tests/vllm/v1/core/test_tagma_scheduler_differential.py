# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The same request streams through upstream's scheduler on both backends.

Both sides must schedule alike at every step: hits, preemptions and evictions are the
same, and so is the order in which cached blocks will be evicted. Only where blocks lie
is the backend's own choice, and each must hold what was computed for it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.v1.core.scheduler_driver import (
    Arrival,
    Driver,
    SchedulerFactory,
    Setting,
    summary,
    write_model_config,
)
from tests.v1.core.worker_memory import WorkerMemory
from vllm.triton_utils import HAS_TRITON
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_block_hash, init_none_hash
from vllm.v1.core.tagma_block_pool import TagmaBlockPool

pytestmark = [
    pytest.mark.cpu_test,
    pytest.mark.skip_global_cleanup,
    pytest.mark.skipif(not HAS_TRITON, reason="needs a GPU or TRITON_INTERPRET=1"),
]

MOST_STEPS = 1500  # several times what the longest stream takes


@dataclass(frozen=True)
class Abort:
    """A client goes away: the request that arrived at this place, if any has."""

    place: int


@dataclass(frozen=True)
class Steps:
    """The engine takes some steps."""

    count: int


@dataclass(frozen=True)
class Reset:
    """The prefix cache is reset; running requests are preempted for it or not."""

    preempt: bool


Event = Arrival | Abort | Steps | Reset


class Traced(Driver):
    """A driver that keeps what the scheduler asks of its manager.

    Args:
        factory: Makes the scheduler.
        setting: Its configuration.
        backend: Its KV cache backend.

    """

    def __init__(self, factory: SchedulerFactory, setting: Setting, backend: str):
        super().__init__(factory.make(setting, backend), setting)
        self.calls: list[tuple[Any, ...]] = []
        manager = self.manager
        self._get_computed_blocks = manager.get_computed_blocks
        self._allocate_slots = manager.allocate_slots
        manager.get_computed_blocks = self.get_computed_blocks
        manager.allocate_slots = self.allocate_slots

    def get_computed_blocks(self, request, *args, **kwargs):
        found = self._get_computed_blocks(request, *args, **kwargs)
        blocks = found[0].blocks[0]
        unheld = sum(block.ref_cnt == 0 for block in blocks)
        self.calls.append(("look-up", request.request_id, found[1], unheld))
        return found

    def allocate_slots(self, request, num_new_tokens, *args, **kwargs):
        before = self.num_free_blocks
        blocks = self._allocate_slots(request, num_new_tokens, *args, **kwargs)
        self.calls.append(
            (
                "allocate",
                request.request_id,
                num_new_tokens,
                before,
                self.num_free_blocks,
                blocks is None,
            )
        )
        return blocks

    def free_hashes(self) -> list[bytes | None]:
        """Return the hashes of the blocks that nobody holds, the next victim first."""
        pool = self.manager.block_pool
        if isinstance(pool, TagmaBlockPool):
            hash_of, queue = pool.index.hash_of, pool.allocator.free_queue()
            return [hash_of(block_id) if block_id >= 0 else None for block_id in queue]
        hashes = (b.block_hash for b in pool.free_block_queue.get_all_free_blocks())
        return [key and get_block_hash(key) for key in hashes]


class Pair:
    """The same stream on both backends."""

    def __init__(self, factory: SchedulerFactory, setting: Setting):
        self.setting = setting
        self.paged = Traced(factory, setting, "paged")
        self.tagma = Traced(factory, setting, "tagma")
        self.sides = (self.paged, self.tagma)
        self.memory = WorkerMemory(setting, self.tagma.conversations)
        self.num_arrived = 0
        self.seen: Counter[str] = Counter()

    def run(self, events: list[Event]) -> None:
        """Feed the stream, let every request finish, and check what is left."""
        for event in events:
            self.feed(event)
        for _ in range(MOST_STEPS):
            if not any(side.scheduler.has_requests() for side in self.sides):
                break
            self.step()
        self.check_end()

    def feed(self, event: Event) -> None:
        match event:
            case Arrival():
                for side in self.sides:
                    side.add(str(self.num_arrived), event)
                self.num_arrived += 1
            case Abort(place):
                if place < self.num_arrived:
                    self.both(lambda side: side.abort(str(place)))
            case Steps(count):
                for _ in range(count):
                    self.step()
            case Reset(preempt):
                self.both(lambda side: side.scheduler.reset_prefix_cache(preempt))
                self.seen["resets"] += 1

    def both(self, action: Callable[[Traced], Any]) -> None:
        """Do the same on both sides, with the same result."""
        paged, tagma = map(action, self.sides)
        assert tagma == paged
        self.compare_state()

    def step(self) -> None:
        for side in self.sides:
            side.calls.clear()
        outputs = [side.step() for side in self.sides]
        paged, tagma = map(summary, outputs)
        assert self.tagma.calls == self.paged.calls
        assert tagma == paged
        self.memory.run(outputs[1])
        self.count(paged)
        self.compare_state()

    def compare_state(self) -> None:
        """Compare everything that later steps depend on, but for placement."""
        paged, tagma = self.sides
        assert tagma.free_hashes() == paged.free_hashes()
        assert tagma.num_free_blocks == paged.num_free_blocks
        assert tagma.manager.usage == paged.manager.usage
        assert tagma.tokens == paged.tokens
        assert tagma.finished == paged.finished
        for queue in ("running", "waiting", "deferred_waiting"):
            names = [
                [request.request_id for request in getattr(side.scheduler, queue)]
                for side in self.sides
            ]
            assert names[0] == names[1], queue
        stats = [side.scheduler.make_stats() for side in self.sides]
        assert stats[0].prefix_cache_stats == stats[1].prefix_cache_stats

    def count(self, step: dict[str, Any]) -> None:
        self.seen["preemptions"] += len(step["preempted"] or ())
        self.seen["hits"] += sum(bool(new[1]) for new in step["new"])
        self.seen["chunks"] += any(
            self.paged.scheduler.requests[name].is_prefill_chunk
            for name, _ in step["tokens"]
            if name in self.paged.scheduler.requests
        )

    def check_end(self) -> None:
        paged, tagma = self.sides
        for side in self.sides:
            assert len(side.finished) == self.num_arrived
            assert side.num_free_blocks == self.setting.num_blocks
        self.memory.check_all()
        self.seen["moves"] += self.memory.num_moves
        allocator = tagma.manager.block_pool.allocator
        allocator.check_invariants()
        self.seen["evictions"] += allocator.stats()["evicted_blocks"]
        assert all(side.scheduler.reset_prefix_cache() for side in self.sides)
        allocator.check_invariants()


class Kind(Enum):
    """What a stream's pool and prompts are made for; the value is for the id."""

    OFF = "caching off"
    ROOMY = "caching on, nothing evicted"
    TIGHT = "caching on, with evictions"


@st.composite
def settings_of(draw: st.DrawFn, kind: Kind) -> Setting:
    """A scheduler whose pool holds any single request of `events_of`."""
    num_blocks = draw(st.integers(6, 24))
    return Setting(
        num_blocks=1000 if kind is Kind.ROOMY else num_blocks,
        block_size=draw(st.sampled_from((1, 4, 16))),
        token_budget=draw(st.sampled_from((16, 64, 4096))),
        max_num_seqs=draw(st.sampled_from((2, 8))),
        caching=kind is not Kind.OFF,
        policy=draw(st.sampled_from(("fcfs", "fcfs", "priority"))),
        async_scheduling=draw(st.booleans()),
        zeroing=True,
    )


def events_of(setting: Setting) -> st.SearchStrategy[list[Event]]:
    """Streams of arrivals, steps and, less often, aborts and resets."""
    pool = min(setting.num_blocks * setting.block_size, 200)
    arrivals = st.builds(
        Arrival,
        conversation=st.integers(0, 5),
        num_prompt_tokens=st.integers(1, pool * 2 // 3),
        max_tokens=st.integers(1, pool // 3),
        priority=st.integers(0, 2),
    )
    steps = st.builds(Steps, st.integers(1, 8))
    rare = st.one_of(
        st.builds(Abort, st.integers(0, 11)), st.builds(Reset, st.booleans())
    )
    return st.lists(
        st.one_of(arrivals, arrivals, arrivals, steps, steps, rare),
        min_size=8,
        max_size=24,
    )


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerFactory]:
    init_none_hash(sha256)
    made = SchedulerFactory(write_model_config(tmp_path_factory.mktemp("model")))
    pool_logger = logging.getLogger("vllm.v1.core.block_pool")
    pool_logger.setLevel(logging.ERROR)  # it tells of every reset
    yield made
    pool_logger.setLevel(logging.NOTSET)


EXPECTED = {
    Kind.OFF: {"preemptions", "chunks", "resets"},
    Kind.ROOMY: {"hits", "chunks", "resets"},
    Kind.TIGHT: {"hits", "preemptions", "evictions", "moves", "chunks", "resets"},
}


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_both_backends_schedule_alike(factory: SchedulerFactory, kind: Kind) -> None:
    seen: Counter[str] = Counter()

    # The same streams every time: a job must not fail by luck.
    @settings(
        max_examples=700,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        setting = data.draw(settings_of(kind))
        pair = Pair(factory, setting)
        pair.run(data.draw(events_of(setting)))
        seen.update(pair.seen)

    run()
    print(kind.value, dict(seen))
    assert all(seen[what] for what in EXPECTED[kind]), seen
    assert bool(seen["evictions"]) == (kind is Kind.TIGHT)


CORNERS: dict[str, tuple[Setting, list[Event]]] = {
    "a pool of one block": (Setting(1), [Arrival(0, 8, 4), Arrival(1, 8, 4), Steps(2)]),
    "a prompt larger than the pool": (
        Setting(8, block_size=4),
        [Arrival(0, 100, 1), Arrival(1, 8, 4), Steps(3), Abort(0)],
    ),
    "an abort in the middle of a prefill": (
        Setting(40, block_size=4, token_budget=16),
        [Arrival(0, 100, 4), Steps(2), Abort(0), Arrival(0, 100, 4)],
    ),
    "a reset while requests run": (
        Setting(24, block_size=4),
        [Arrival(0, 30, 9), Arrival(1, 30, 9), Steps(3), Reset(False), Reset(True)],
    ),
    "blocks of 2,048 tokens": (
        Setting(6, block_size=2048),
        [Arrival(0, 3000, 50), Arrival(1, 3000, 50), Steps(4), Arrival(0, 3000, 9)],
    ),
}


@pytest.mark.parametrize("caching", [False, True], ids=["caching off", "caching on"])
@pytest.mark.parametrize("corner", CORNERS)
def test_corners_are_as_paged(
    factory: SchedulerFactory, corner: str, caching: bool
) -> None:
    setting, events = CORNERS[corner]
    pair = Pair(factory, replace(setting, caching=caching))
    pair.run(events)
