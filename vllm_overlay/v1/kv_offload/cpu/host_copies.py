# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Offloading on a host without a GPU, so that its data can be verified there.

For tests and demonstrations: offloading from host memory to host memory gains
nothing. TAGMA_HOST_OFFLOAD=STEPS enables it. A transfer is then made by the upstream
worker's own list of copies, but late: when STEPS steps have asked whether it is
finished, or something waits for it. Whatever reuses a block too early is seen.
"""

import ctypes
import os
import time
from collections import deque
from dataclasses import dataclass

import torch

from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu.gpu_worker import (
    CPUOffloadingWorker,
    SingleDirectionOffloadingHandler,
)

logger = init_logger(__name__)

VARIABLE = "TAGMA_HOST_OFFLOAD"


def are_enabled() -> bool:
    """Whether offloading may run on this host though it has no GPU."""
    return current_platform.is_cpu() and VARIABLE in os.environ


def worker_cls(gpu_worker_cls: type[CPUOffloadingWorker]) -> type[CPUOffloadingWorker]:
    """Return the class of worker that makes the transfers."""
    return HostOffloadingWorker if are_enabled() else gpu_worker_cls


@dataclass(frozen=True)
class CopyList:
    """Copies of a transfer: three tensors of addresses, addresses and bytes."""

    sources: torch.Tensor
    targets: torch.Tensor
    sizes: torch.Tensor

    def make(self) -> None:
        lists = (self.sources, self.targets, self.sizes)
        for source, target, size in zip(*(values.tolist() for values in lists)):
            ctypes.memmove(target, source, size)


class HostEvent:
    """Has the part of a `torch.Event` that a transfer needs."""

    def __init__(self, stream: "HostStream", num_polls: int):
        self.stream = stream
        self.num_polls = num_polls
        self.reached_at: float | None = None

    def record(self, stream: object) -> None:
        """Come after what the direction's transfers have queued so far."""
        self.stream.queue.append(self)

    def query(self) -> bool:
        """Whether it is reached, which it is at the last of its polls."""
        if self.num_polls <= 0:
            self.synchronize()
        self.num_polls -= 1
        return self.reached_at is not None

    def synchronize(self) -> None:
        """Make all copies that were queued before."""
        while self.reached_at is None:
            self.stream.advance()

    def elapsed_time(self, end: "HostEvent") -> float:
        """Return the milliseconds from this event to another."""
        assert self.reached_at is not None and end.reached_at is not None
        return (end.reached_at - self.reached_at) * 1e3


class HostStream:
    """The copies of one direction, in order, and the events between them.

    It takes the place of the pool of events, whose `pop()` gives a new one.

    Args:
        num_polls: How often an event is asked for in vain.

    """

    def __init__(self, num_polls: int):
        self.num_polls = num_polls
        self.queue: deque[CopyList | HostEvent] = deque()
        self.num_transfers = 0
        self.num_copies = 0
        self.num_bytes = 0

    def swap_blocks_batch(
        self,
        sources: torch.Tensor,
        targets: torch.Tensor,
        sizes: torch.Tensor,
        is_src_access_order_any: bool = False,
    ) -> None:
        """Queue the copies of a transfer, as the operator of this name would."""
        self.queue.append(CopyList(sources, targets, sizes))
        self.num_transfers += 1
        self.num_copies += len(sizes)
        self.num_bytes += int(sizes.sum())

    def advance(self) -> None:
        """Do what is next in the queue."""
        item = self.queue.popleft()
        if isinstance(item, CopyList):
            item.make()
        else:
            item.reached_at = time.perf_counter()

    def __bool__(self) -> bool:
        return True

    def pop(self) -> HostEvent:
        return HostEvent(self, self.num_polls)

    def append(self, event: HostEvent) -> None:
        """Drop an event: each is used once."""

    def clear(self) -> None:
        self.queue.clear()


class HostOffloadingHandler(SingleDirectionOffloadingHandler):
    """Makes the transfers of one direction between host tensors."""

    device_types = ("cpu",)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.host_stream = HostStream(int(os.environ[VARIABLE]))
        self._event_pool = self.host_stream
        self._swap_blocks_batch = self.host_stream.swap_blocks_batch


class HostOffloadingWorker(CPUOffloadingWorker):
    """Makes the transfers between host tensors, and counts them."""

    handler_cls = HostOffloadingHandler

    @property
    def stores(self) -> HostStream:
        return self._store_handler.host_stream

    @property
    def loads(self) -> HostStream:
        return self._load_handler.host_stream

    def shutdown(self) -> None:
        super().shutdown()
        for name, stream in (("stores", self.stores), ("loads", self.loads)):
            logger.info(
                "%d %s were %d copies of %d bytes.",
                stream.num_transfers,
                name,
                stream.num_copies,
                stream.num_bytes,
            )
