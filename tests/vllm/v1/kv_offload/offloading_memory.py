# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A worker's KV cache that OffloadingConnector stores and loads, without a GPU."""

import torch

from tests.v1.core.scheduler_driver import Driver, Setting
from tests.v1.core.worker_memory import WorkerMemory
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
    build_offloading_config,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import (
    OffloadingConnectorWorker,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
)
from vllm.v1.kv_offload.cpu.host_copies import HostOffloadingWorker
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.outputs import KVConnectorOutput

# A chunk takes whole pages of memory.
CHUNK_BYTES = 4096


def offloading(num_chunks: int, **settings: object) -> KVTransferConfig:
    """Return the setting of an OffloadingConnector with so many chunks."""
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "cpu_bytes_to_use": num_chunks * CHUNK_BYTES,
            **settings,
        },
    )


class OffloadingMemory(WorkerMemory):
    """Does what a worker does with OffloadingConnector, in the worker's order.

    Args:
        setting: Of the scheduler.
        driver: Runs the scheduler. It is told what the connector answers.

    """

    def __init__(self, setting: Setting, driver: Driver):
        super().__init__(setting, driver.conversations)
        driver.on_run = self.run_with_connector
        scheduler = driver.scheduler
        self.connector = make_connector_worker(
            scheduler.vllm_config, scheduler.kv_cache_config
        )
        pages = torch.from_numpy(self.slots).view(torch.int8)
        num_bytes = pages.shape[1]
        self.connector._init_worker(
            CanonicalKVCaches(
                [CanonicalKVCacheTensor(pages, num_bytes)],
                [[CanonicalKVCacheRef(0, num_bytes)]],
            )
        )

    @property
    def worker(self) -> HostOffloadingWorker:
        """What makes the transfers."""
        worker = self.connector.worker
        assert isinstance(worker, HostOffloadingWorker)
        return worker

    def flush(self, output: SchedulerOutput) -> None:
        self.connector.handle_preemptions(output.kv_connector_metadata)

    def run_with_connector(self, output: SchedulerOutput) -> KVConnectorOutput:
        """Do what a step says, and return what the connector answers."""
        self.run(output)
        self.connector.start_kv_transfers(output.kv_connector_metadata)
        self.connector.prepare_store_kv(output.kv_connector_metadata)
        sent, received = self.connector.get_finished(output.finished_req_ids)
        return KVConnectorOutput(
            finished_sending=sent or None,
            finished_recving=received or None,
            kv_connector_worker_meta=self.connector.build_connector_worker_meta(),
        )


def make_connector_worker(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig
) -> OffloadingConnectorWorker:
    """Return the worker's half of the connector that a scheduler has."""
    config = build_offloading_config(vllm_config, kv_cache_config)
    spec = OffloadingSpecFactory.create_spec(config)
    return OffloadingConnectorWorker(spec, vllm_config, kv_cache_config)


def manager_of(scheduler: Scheduler):
    """Return the manager of the CPU chunks."""
    return scheduler.connector.connector_scheduler.manager
