# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""MooncakeConnector groups the blocks of a request once, not once for each layer."""

import asyncio
import random
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import (
    MooncakeConnectorWorker,
    TransferRegion,
    group_concurrent_contiguous,
)

pytestmark = [pytest.mark.cpu_test, pytest.mark.skip_global_cleanup]

NUM_GROUPS = 3
SHARED = -1  # The group index of a region that several groups share.


def make_worker(num_requests: int, rng: random.Random):
    """Return a worker without an engine, requests to send, and where they go."""
    worker = object.__new__(MooncakeConnectorWorker)
    worker.shutdown = lambda: None  # There is nothing to shut down.
    worker._physical_blocks_per_logical_kv_block = 1
    group = SimpleNamespace(kv_cache_spec=None)
    worker.kv_cache_config = SimpleNamespace(transfer_groups=[group] * NUM_GROUPS)
    worker._get_sender_transfer_plan = lambda **lengths: (
        True,
        0,
        0,
        min(lengths["local_kv_block_len"], lengths["remote_kv_block_len"]),
    )
    sends, goals = [], {}
    for number in range(num_requests):
        sizes = [rng.randrange(1, 40) for _ in range(NUM_GROUPS)]
        local, remote = ([ids(size, rng) for size in sizes] for _ in range(2))
        sends.append((str(number), SimpleNamespace(local_block_ids=local)))
        goals[str(number)] = ("", remote)
    meta = SimpleNamespace(
        remote_hostname="host",
        remote_port=1,
        remote_tp_rank=0,
        remote_tp_size=1,
        req_blocks=goals,
    )
    return worker, sends, meta


def ids(count: int, rng: random.Random) -> list[int]:
    """Return block ids in runs of different lengths."""
    found: list[int] = []
    while len(found) < count:
        start = rng.randrange(1000)
        found += range(start, start + rng.randrange(1, 8))
    return found[:count]


def make_regions(rng: random.Random) -> tuple[list[TransferRegion], ...]:
    """Return regions of several layers, on both sides."""
    local, remote = [], []
    for layer in range(rng.randrange(2, 12)):
        group = rng.choice([0, 1, 2, SHARED])
        shared = rng.choice([(0, 1), (0, 2)]) if group == SHARED else ()
        for side in local, remote:
            # Where a block is longer than what is sent of it, none are merged.
            length = rng.choice([64, 64, 128])
            base = rng.randrange(1 << 20)
            side.append(
                TransferRegion(str(layer), layer, base, length, 64, group, shared)
            )
    return local, remote


def build(worker, sends, meta, local, remote) -> tuple[list[int], ...]:
    """Return the addresses and lengths of a transfer."""
    *lists, failed, message = asyncio.run(
        worker._build_transfer_params(sends, meta, local, remote)
    )
    assert not failed and message is None
    return tuple(lists)


@pytest.mark.parametrize("seed", range(20))
def test_the_lists_are_those_of_the_regions_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    worker, sends, meta = make_worker(3, rng)
    local, remote = make_regions(rng)
    expected: tuple[list[int], ...] = ([], [], [])
    for send in sends:
        for pair in zip(local, remote):
            ones = build(worker, [send], meta, *([region] for region in pair))
            for whole, part in zip(expected, ones):
                whole += part
    assert build(worker, sends, meta, local, remote) == expected


def test_blocks_are_grouped_once_for_all_layers_of_a_group() -> None:
    rng = random.Random(1)
    worker, sends, meta = make_worker(2, rng)
    groups = [(0, ()), (1, ()), (SHARED, (0, 1))]
    regions = [
        TransferRegion(str(layer), layer, layer << 20, 64, 64, *groups[layer % 3])
        for layer in range(12)
    ]
    with patch.object(
        mooncake_connector,
        "group_concurrent_contiguous",
        wraps=group_concurrent_contiguous,
    ) as grouping:
        build(worker, sends, meta, regions, regions)
    assert grouping.call_count == len(sends) * len(groups)
