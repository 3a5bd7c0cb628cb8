"""A vLLM plugin that records how KV blocks lie when they move between two servers.

`tools.measure.demo.plugin` copies this file, so it imports nothing of the tools. The
file that TAGMA_PROBE_FILE names gets one JSON line

- for each transfer, from the server that posts it: its blocks, and in how many runs
  they lie in the pool of the prefill side, in that of the decode side, and in both;
- for each send of Mooncake, which has no metrics, from the server that makes it: its
  descriptors, bytes and seconds, or that it failed;
- for each request that gives its blocks back: which, as [first, count] pairs, and
  what share of the pool is held at that time.

A run is a maximal contiguous stretch, whatever manager placed it.

Two servers have to share two cores, so what polls without a pause is calmed: NIXL's
thread that makes progress gets a lower priority, and vLLM's workers wait for a message
instead of yielding, which on Linux 6.18 can put a thread behind all others for minutes.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

_NICE = 10


def runs(*lists: Sequence[int]) -> int:
    """Return the number of stretches that are contiguous in every list.

    >>> runs([4, 5, 6, 9]), runs([1, 2, 8, 9]), runs([4, 5, 6, 9], [1, 2, 8, 9])
    (2, 2, 3)
    """
    return sum(
        index == 0 or any(ids[index] != ids[index - 1] + 1 for ids in lists)
        for index in range(len(lists[0]))
    )


def stretches(blocks: Sequence[int]) -> list[list[int]]:
    """Return block ids as [first, count] pairs.

    >>> stretches([4, 5, 6, 9])
    [[4, 3], [9, 1]]
    """
    found: list[list[int]] = []
    for block in blocks:
        if found and block == sum(found[-1]):
            found[-1][1] += 1
        else:
            found.append([block, 1])
    return found


def register() -> None:
    """Wrap the methods that see what is recorded, and those that begin to poll."""
    from vllm.v1.core.sched.scheduler import Scheduler

    if Scheduler._free_request_blocks.__module__ != __name__:
        # vLLM may load a plugin more than once.
        _record_blocks()
        _record_mooncake()
        _calm_pollers()


def _record_blocks() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import (
        NixlBaseConnectorWorker,
    )
    from vllm.v1.core.sched.scheduler import Scheduler

    give_back = Scheduler._free_request_blocks
    pair = NixlBaseConnectorWorker._apply_prefix_caching

    def record_and_give_back(self: Any, request: Any) -> None:
        manager = self.kv_cache_manager
        blocks = list(manager.get_block_ids(request.request_id)[0])
        if blocks:
            _write(released=stretches(blocks), held_share=manager.usage)
        give_back(self, request)

    def pair_and_record(self: Any, *args: Any, **kwargs: Any) -> Any:
        decode, prefill = pair(self, *args, **kwargs)
        ours, theirs = list(decode[0]), list(prefill[0])
        _write_lists(prefill=theirs, decode=ours)
        return decode, prefill

    Scheduler._free_request_blocks = record_and_give_back
    NixlBaseConnectorWorker._apply_prefix_caching = pair_and_record


def _record_mooncake() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import (
        mooncake_connector,
        stats,
    )

    group = mooncake_connector.group_concurrent_contiguous
    counts = stats.MooncakeKVConnectorStats
    send = counts.record_transfer

    def group_and_record(ours: Sequence[int], theirs: Sequence[int]) -> Any:
        _write_lists(prefill=list(ours), decode=list(theirs))
        _write(transfers=1)
        return group(ours, theirs)

    def record_send(
        self: Any, duration_s: float, total_bytes: int, num_descs: int
    ) -> None:
        _write(descriptors=num_descs, bytes=total_bytes, transfer_s=duration_s)
        send(self, duration_s, total_bytes, num_descs)

    def recording(name: str, **values: int) -> None:
        count = getattr(counts, name)

        def record(self: Any) -> None:
            _write(**values)
            count(self)

        setattr(counts, name, record)

    mooncake_connector.group_concurrent_contiguous = group_and_record
    counts.record_transfer = record_send
    recording("record_failed_transfer", failed=1)
    recording("record_failed_recv", failed=1)
    recording("record_kv_expired_req", expired=1)


def _calm_pollers() -> None:
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import (
        NixlBaseConnectorWorker,
    )

    start, wait = NixlBaseConnectorWorker.__init__, SpinCondition.__init__

    def start_politely(self: Any, *args: Any, **kwargs: Any) -> None:
        before = _threads()
        start(self, *args, **kwargs)
        for thread in _threads() - before:
            os.setpriority(os.PRIO_PROCESS, thread, _NICE)

    def wait_for_messages(self: Any, *args: Any, **kwargs: Any) -> None:
        wait(self, *args, **kwargs)
        self.busy_loop_s = 0

    NixlBaseConnectorWorker.__init__ = start_politely
    SpinCondition.__init__ = wait_for_messages


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def _write_lists(prefill: Sequence[int], decode: Sequence[int]) -> None:
    if decode:
        _write(
            blocks=len(decode),
            prefill=runs(prefill),
            decode=runs(decode),
            both=runs(prefill, decode),
        )


def _write(**values: Any) -> None:
    with open(os.environ["TAGMA_PROBE_FILE"], "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")
