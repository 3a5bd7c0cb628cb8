"""Make the copies of offloading with upstream's worker, on a GPU or a host alone.

Usage: python -m tools.inside.offload_copies FILE

FILE holds a `Task` and gets the result, one JSON object each; `tools.replay.offload`
runs it in the serving environment. Without a GPU, TAGMA_HOST_OFFLOAD has to be set.
All sides take turns in every round, and every byte is checked in the first one.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu import host_copies
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker

Runs = Sequence[tuple[int, int, int]]  # source, target, how many blocks


@dataclass(frozen=True)
class Task:
    """What is measured.

    Args:
        tensors: Of the KV cache; each has a page of every block.
        page_bytes: Bytes of a page.
        num_blocks: Blocks of the device.
        num_chunks: Blocks that the host has memory for.
        rounds: How often each transfer is made.
        sides: By name: whether copies are merged, and the blocks of a store and of a
            load.
    """

    tensors: int
    page_bytes: int
    num_blocks: int
    num_chunks: int
    rounds: int
    sides: Mapping[str, Mapping[str, Any]]


class Copies:
    """A worker whose copies are counted."""

    def __init__(self, task: Task) -> None:
        shape = (task.num_blocks, task.page_bytes)
        device = "cpu" if current_platform.is_cpu() else current_platform.device_type
        self.device_tensors = [
            torch.zeros(shape, dtype=torch.int8, device=device)
            for _ in range(task.tensors)
        ]
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(t, task.page_bytes) for t in self.device_tensors],
            [[CanonicalKVCacheRef(i, task.page_bytes) for i in range(task.tensors)]],
        )
        self.worker = host_copies.worker_cls(CPUOffloadingWorker)(
            kv_caches=caches, blocks_per_chunk=1, num_cpu_chunks=task.num_chunks
        )
        self.handlers = {
            "stores": self.worker._store_handler,
            "loads": self.worker._load_handler,
        }
        self.num_copies = 0
        for handler in self.handlers.values():
            handler._swap_blocks_batch = self._counted(handler._swap_blocks_batch)

    def _counted(self, swap: Any) -> Any:
        def swap_blocks_batch(*arguments: Any, **settings: Any) -> None:
            self.num_copies = len(arguments[2])
            swap(*arguments, **settings)

        return swap_blocks_batch

    def transfer(self, kind: str, runs: Runs, merges: bool) -> dict[str, float]:
        """Make a store or a load.

        Returns:
            `copies`; `list_ms`, the thread's CPU time to hand them over; and
            `elapsed_ms`.
        """
        handler = self.handlers[kind]
        handler._merges_copies = merges
        sources, targets = ids_of(runs)
        device = sources if kind == "stores" else targets
        block_spec = GPULoadStoreSpec(device, [len(device)], [0])
        chunks = CPULoadStoreSpec(targets if kind == "stores" else sources)
        synchronize()
        begun, thread = time.perf_counter(), time.thread_time()
        if kind == "stores":
            self.worker.submit_store(1, block_spec, chunks)
        else:
            self.worker.submit_load(1, chunks, block_spec)
        listed = time.thread_time()
        self.worker.wait({1})
        ended = time.perf_counter()
        (result,) = self.worker.get_finished()
        if not result.success:
            raise RuntimeError("a transfer failed")
        return {
            "copies": self.num_copies,
            "bytes": result.transfer_size,
            "list_ms": (listed - thread) * 1e3,
            "elapsed_ms": (ended - begun) * 1e3,
        }

    def verify(self, kind: str, runs: Runs, merges: bool) -> None:
        """Make a transfer and check every byte that it writes, and its neighbours.

        Raises:
            RuntimeError: One is wrong.
        """
        sources, targets = ids_of(runs)
        handler = self.handlers[kind]
        for number, tensor in enumerate(handler.src_tensors):
            names = torch.arange(len(sources)) * 37 + number
            tensor[sources] = names.to(torch.int8).to(tensor.device)[:, None]
        for tensor in handler.dst_tensors:
            tensor.zero_()
        self.transfer(kind, runs, merges)
        for source, target in zip(
            handler.src_tensors, handler.dst_tensors, strict=True
        ):
            expected = torch.zeros_like(target)
            expected[targets] = source[sources].to(target.device)
            if not torch.equal(expected, target):
                raise RuntimeError(f"{kind} gave wrong bytes")


def ids_of(runs: Runs) -> tuple[list[int], list[int]]:
    """Return sources and targets, block by block."""
    sources = [first + i for first, _, count in runs for i in range(count)]
    targets = [first + i for _, first, count in runs for i in range(count)]
    return sources, targets


def synchronize() -> None:
    """Wait until the device is idle."""
    if not current_platform.is_cpu():
        torch.accelerator.synchronize()


def measure(task: Task) -> list[dict[str, Any]]:
    """Return a row for each round, kind and side."""
    copies = Copies(task)
    rows = []
    for number in range(-1, task.rounds):
        for name in sorted(task.sides, reverse=bool(number % 2)):
            side = task.sides[name]
            for kind in ("stores", "loads"):
                given = (kind, side[kind], side["merges"])
                if number < 0:
                    copies.verify(*given)
                else:
                    rows.append({"side": name, "kind": kind, **copies.transfer(*given)})
        print("round", flush=True)
    return rows


def main(file: Path) -> None:
    """Measure what the file says, and write the result into it."""
    task = Task(**json.loads(file.read_text()))
    file.write_text(json.dumps(measure(task)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
