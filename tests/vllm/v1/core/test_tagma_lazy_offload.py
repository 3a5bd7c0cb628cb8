# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Lazy offloading sees the same blocks at the end of their time as with paged.

It walks the free blocks and stores those that are given away soon: upstream's scheduler
and SimpleCPUOffloadConnector, with a model that is known by heart.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.v1.core.scheduler_driver import (
    Arrival,
    Driver,
    SchedulerFactory,
    Setting,
    write_model_config,
)
from tests.v1.core.worker_memory import WorkerMemory
from vllm.config import KVTransferConfig
from vllm.triton_utils import HAS_TRITON
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

pytestmark = [
    pytest.mark.cpu_test,
    pytest.mark.skip_global_cleanup,
    pytest.mark.skipif(not HAS_TRITON, reason="needs a GPU or TRITON_INTERPRET=1"),
]

BLOCK_SIZE = 16
SETTING = Setting(48, block_size=BLOCK_SIZE, token_budget=128, max_num_seqs=6)
CPU_BLOCKS = 96
BLOCK_BYTES = 2 * BLOCK_SIZE * 4  # K and V of one head of one float32
LAZY = KVTransferConfig(
    kv_connector="SimpleCPUOffloadConnector",
    kv_role="kv_both",
    kv_connector_extra_config={
        "lazy_offload": True,
        "cpu_bytes_to_use": CPU_BLOCKS * BLOCK_BYTES,
    },
)
STEPS = 600


@dataclass
class Transfer:
    """Blocks that are stored and loaded by a step, some steps later."""

    due: int
    event: int
    stores: tuple[list[int], list[int]]  # blocks, CPU blocks
    loads: tuple[list[int], list[int]]
    requests: set[str]  # whose loads these are
    is_made: bool = False


class LazyMemory(WorkerMemory):
    """A worker's KV cache whose blocks are stored as late as they may be.

    Args:
        driver: Runs the scheduler. It is told what the connector answers.

    """

    def __init__(self, driver: Driver):
        super().__init__(SETTING, driver.conversations)
        driver.on_run = self.run_with_connector
        self.blocks = driver.manager.block_pool.blocks
        self.cpu_slots = np.zeros_like(self.slots, shape=(CPU_BLOCKS, BLOCK_SIZE))
        self.delays = random.Random(5)
        self.num_steps = 0
        self.under_way: deque[Transfer] = deque()
        self.stored: list[bytes | None] = []
        self.loaded: list[int] = []

    def flush(self, output: SchedulerOutput) -> None:
        if output.kv_connector_metadata.need_flush:
            for transfer in self.under_way:
                self._make(transfer)

    def _make(self, transfer: Transfer) -> None:
        if not transfer.is_made:
            blocks, cpu_blocks = transfer.stores
            self.cpu_slots[cpu_blocks] = self.slots[blocks]
            blocks, cpu_blocks = transfer.loads
            self.slots[blocks] = self.cpu_slots[cpu_blocks]
        transfer.is_made = True

    def run_with_connector(self, output: SchedulerOutput) -> KVConnectorOutput:
        """Do what a step says, and return what the connector answers."""
        self.run(output)
        self.num_steps += 1
        step: Any = output.kv_connector_metadata
        self.stored = [self.blocks[id].block_hash for id in step.store_gpu_blocks]
        self.loaded = list(step.load_cpu_blocks)
        self.under_way.append(
            Transfer(
                self.num_steps + self.delays.randrange(3),
                step.store_event,
                (list(step.store_gpu_blocks), list(step.store_cpu_blocks)),
                (list(step.load_gpu_blocks), list(step.load_cpu_blocks)),
                set(step.load_event_to_reqs.get(step.load_event, ())),
            )
        )
        stores: dict[int, int] = {}
        received: set[str] = set()
        while self.under_way and self.under_way[0].due <= self.num_steps:
            transfer = self.under_way.popleft()
            self._make(transfer)
            received |= transfer.requests
            if transfer.event >= 0:
                stores[transfer.event] = 1
        return KVConnectorOutput(
            finished_recving=received,
            kv_connector_worker_meta=SimpleCPUOffloadWorkerMetadata(stores),
        )


class Offloading:
    """A scheduler with a connector, its workers, and what they have done."""

    def __init__(self, factory: SchedulerFactory, backend: str):
        self.driver = Driver(factory.make(SETTING, backend, LAZY), SETTING)
        self.memory = LazyMemory(self.driver)
        self.stored: list[bytes] = []
        self.num_loaded = 0

    def step(self, arrival: Arrival | None, victim: str | None) -> None:
        """Schedule once, after a request has come or gone."""
        if arrival is not None:
            self.driver.add(str(len(self.driver.tokens)), arrival)
        if victim in self.driver.tokens:
            self.driver.abort(victim)
        self.driver.step()
        assert None not in self.memory.stored
        self.stored += self.memory.stored
        self.num_loaded += len(self.memory.loaded)


def make_stream() -> Iterator[tuple[Arrival | None, str | None]]:
    """Yield for each step the request that comes and the one that is aborted."""
    order = random.Random(11)
    for number in range(STEPS):
        arrival = victim = None
        if number % 3 == 0 and number < STEPS - 100:
            length, count = order.randrange(20, 400), order.randrange(1, 40)
            arrival = Arrival(order.randrange(12), length, count)
        if order.random() < 0.05:
            victim = str(order.randrange(number // 3 + 1))
        yield arrival, victim


@pytest.fixture(scope="module")
def factory(tmp_path_factory) -> SchedulerFactory:
    init_none_hash(sha256)
    return SchedulerFactory(write_model_config(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def sides(factory) -> list[Offloading]:
    """The same stream on both backends, each hit compared with its tokens."""
    made = [Offloading(factory, backend) for backend in ("paged", "tagma")]
    for side in made:
        for events in make_stream():
            side.step(*events)
        side.memory.check_all()
    return made


def test_what_is_stored_and_loaded_is_right_while_blocks_move(sides):
    _, tagma = sides
    counts = (len(tagma.stored), tagma.num_loaded, tagma.memory.num_moves)
    assert min(counts) > STEPS // 4


def test_what_is_stored_and_loaded_is_what_paged_stores_and_loads(sides):
    """Nearly: of a block that is empty or was moved, the walk goes on elsewhere."""
    paged, tagma = sides
    common = len(set(paged.stored) & set(tagma.stored))
    assert common > 0.8 * len(set(paged.stored) | set(tagma.stored))
    assert tagma.num_loaded > 0.9 * paged.num_loaded
