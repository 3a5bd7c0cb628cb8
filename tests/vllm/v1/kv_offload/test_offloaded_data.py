# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Offloaded data come back byte for byte, while the pool is full and blocks move."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
import torch

from tests.v1.core.scheduler_driver import (
    Arrival,
    Driver,
    SchedulerFactory,
    Setting,
    write_model_config,
)
from tests.v1.kv_offload.offloading_memory import (
    OffloadingMemory,
    manager_of,
    offloading,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu import host_copies
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.cpu.tensor_region import TensorOffloadRegion

pytestmark = pytest.mark.skip_global_cleanup

NUM_REQUESTS = 120
MOST_STEPS = 20_000


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> SchedulerFactory:
    init_none_hash(sha256)
    folder: Path = tmp_path_factory.mktemp("model")
    return SchedulerFactory(write_model_config(folder))


@dataclass
class Crowd:
    """Conversations that come back when the pool has lost them; some are aborted."""

    driver: Driver
    rng: random.Random
    turns: dict[int, int] = field(default_factory=dict)
    num_added: int = 0
    num_preempted: int = 0

    def step(self) -> None:
        if self.num_added < NUM_REQUESTS and self.rng.random() < 0.5:
            conversation = self.rng.randrange(12)
            length = self.turns.get(conversation, self.rng.randrange(20, 60))
            self.turns[conversation] = min(400, length + self.rng.randrange(10, 90))
            arrival = Arrival(conversation, length, self.rng.randrange(1, 30))
            self.driver.add(str(self.num_added), arrival)
            self.num_added += 1
        if self.num_added and self.rng.random() < 0.05:
            recent = range(max(0, self.num_added - 8), self.num_added)
            self.driver.abort(str(self.rng.choice(recent)))
        output = self.driver.step()
        self.num_preempted += len(output.preempted_req_ids or ())

    def run(self) -> None:
        """Let all requests arrive and finish."""
        for _ in range(MOST_STEPS):
            self.step()
            unfinished = self.driver.scheduler.has_requests()
            if self.num_added == NUM_REQUESTS and not unfinished:
                return
        raise AssertionError("the requests do not come to an end")


@pytest.mark.parametrize("num_polls", [0, 3])
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("backend", ["paged", "tagma"])
def test_data_come_back_under_load(
    monkeypatch, factory, backend: str, async_scheduling: bool, num_polls: int
):
    monkeypatch.setenv(host_copies.VARIABLE, str(num_polls))
    setting = Setting(
        120, block_size=4, token_budget=128, async_scheduling=async_scheduling
    )
    driver = Driver(factory.make(setting, backend, offloading(300)), setting)
    driver.scheduler.needs_kv_cache_zeroing = backend == "tagma"
    memory = OffloadingMemory(setting, driver)
    crowd = Crowd(driver, random.Random(7))
    crowd.run()

    memory.check_all()
    stores, loads = memory.worker.stores, memory.worker.loads
    assert stores.num_transfers and loads.num_transfers and crowd.num_preempted
    assert bool(memory.num_moves) == (backend == "tagma")
    manager = type(manager_of(driver.scheduler)).__name__
    assert manager.startswith("Tagma") == (backend == "tagma")
    assert driver.num_free_blocks == setting.num_blocks


def test_offloading_refuses_a_host_without_a_gpu(monkeypatch, factory):
    monkeypatch.delenv(host_copies.VARIABLE, raising=False)
    setting = Setting(16)
    driver = Driver(factory.make(setting, "paged", offloading(4)), setting)
    with pytest.raises(Exception, match="only supported on CUDA-alike"):
        OffloadingMemory(setting, driver)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("blocks_per_chunk", [1, 3])
def test_a_run_on_both_sides_is_one_copy_a_tensor(
    monkeypatch, blocks_per_chunk: int, shared: bool
):
    """By upstream's worker: a store and a load of several runs, of four tensors."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    monkeypatch.setenv(host_copies.VARIABLE, "0")
    tensors = [
        torch.randint(-128, 128, (48, 64), dtype=torch.int8, device=device)
        for _ in range(4)
    ]
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, 64) for tensor in tensors],
        [[CanonicalKVCacheRef(i, 64) for i in range(4)]],
    )
    # Shared memory as the workers of a GPU host have it.
    page = 4 * 64 * blocks_per_chunk
    region = TensorOffloadRegion(str(uuid4()), 16, 0, 4096, page) if shared else None
    worker_cls = host_copies.worker_cls(CPUOffloadingWorker)
    worker = worker_cls(caches, blocks_per_chunk, 16, region)
    chunks = [4, 5, 6, 1, 2, 9]
    blocks = list(range(7, 7 + len(chunks) * blocks_per_chunk))
    expected = [tensor[blocks].cpu() for tensor in tensors]

    handed: list[int] = []
    for handler in (worker._store_handler, worker._load_handler):
        swap = handler._swap_blocks_batch

        def record(sources, *lists, swap=swap, **kwargs):
            handed.append(len(sources))
            swap(sources, *lists, **kwargs)

        handler._swap_blocks_batch, handler._merges_copies = record, True

    device_spec = GPULoadStoreSpec(blocks, (len(blocks),), (0,))
    worker.submit_store(1, device_spec, CPULoadStoreSpec(chunks))
    worker.wait({1})
    for tensor in tensors:
        tensor.zero_()
    worker.submit_load(2, CPULoadStoreSpec(chunks), device_spec)
    worker.wait({2})

    assert handed == [3 * 4, 3 * 4]
    assert all(torch.equal(t[blocks].cpu(), e) for t, e in zip(tensors, expected))
    results = worker.get_finished()
    assert [result.job_id for result in results] == [1, 2]
    assert {result.transfer_size for result in results} == {len(blocks) * 4 * 64}
    worker.shutdown()
