# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Merged lists of copies move the same bytes with fewer copies."""

import ctypes
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vllm.v1.kv_offload.copy_list import merge_copies
from vllm.v1.simple_kv_offload import cuda_mem_ops

BLOCK_BYTES = 24
NUM_BLOCKS = 64


def scattered_runs(rng: random.Random, count: int) -> list[int]:
    """Return `count` different block ids, in runs of random lengths."""
    ids = list(range(NUM_BLOCKS))
    cuts = sorted(rng.sample(range(1, NUM_BLOCKS), rng.randrange(NUM_BLOCKS - 1)))
    pieces = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, NUM_BLOCKS])]
    rng.shuffle(pieces)
    return [block for piece in pieces for block in piece][:count]


def count_runs(*lists: list[int]) -> int:
    """Return the number of runs that are contiguous in all the lists."""
    return sum(
        i == 0 or any(ids[i] != ids[i - 1] + 1 for ids in lists)
        for i in range(len(lists[0]))
    )


def copy(sources: np.ndarray, targets: np.ndarray, sizes: np.ndarray) -> None:
    for source, target, size in zip(sources, targets, sizes):
        ctypes.memmove(int(target), int(source), int(size))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("seed", range(20))
def test_merged_copies_move_the_same_bytes(seed: int, dtype: type):
    rng = random.Random(seed)
    num_tensors, count = rng.randrange(1, 4), rng.randrange(1, NUM_BLOCKS + 1)
    ids = scattered_runs(rng, count), scattered_runs(rng, count)
    shape = (num_tensors, NUM_BLOCKS, BLOCK_BYTES)
    memory = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    copied = [np.zeros(shape, dtype=np.uint8) for _ in range(2)]

    def addresses(tensors: np.ndarray, blocks: list[int]) -> np.ndarray:
        bases = np.array([t.ctypes.data for t in tensors], dtype=dtype)
        offsets = np.array(blocks, dtype=dtype) * dtype(BLOCK_BYTES)
        return (bases[:, None] + offsets).ravel()

    sizes = np.full(num_tensors * count, BLOCK_BYTES, dtype=dtype)
    copy(addresses(memory, ids[0]), addresses(copied[0], ids[1]), sizes)

    sources, targets = addresses(memory, ids[0]), addresses(copied[1], ids[1])
    seams = [t.ctypes.data for t in (*memory, *copied[1])]
    merged = merge_copies(sources, targets, sizes, seams)
    copy(sources[:merged], targets[:merged], sizes[:merged])

    assert copied[0].any() and np.array_equal(*copied)
    assert merged == num_tensors * count_runs(*ids)
    assert sizes[:merged].sum() == num_tensors * count * BLOCK_BYTES


@pytest.mark.parametrize("side", ["source", "target"])
def test_no_copy_runs_past_a_seam(side: str):
    starts = np.arange(0, 6 * BLOCK_BYTES, BLOCK_BYTES)
    lists = starts + 1000, starts + 5000, np.full(6, BLOCK_BYTES)
    seam = {"source": 1000, "target": 5000}[side] + 4 * BLOCK_BYTES
    assert merge_copies(*lists, [seam, 1000, 5000, 99]) == 2
    assert lists[0][:2].tolist() == [1000, 1000 + 4 * BLOCK_BYTES]
    assert lists[2][:2].tolist() == [4 * BLOCK_BYTES, 2 * BLOCK_BYTES]


@pytest.mark.parametrize("count", [0, 1])
def test_a_list_without_neighbours_is_left_as_it_is(count: int):
    lists = [np.full(count, 7) for _ in range(3)]
    assert merge_copies(*lists, [7]) == count
    assert all((a == 7).all() for a in lists)


@pytest.mark.parametrize("most_descriptors", [0, 3])
def test_copy_blocks_hands_over_merged_copies(monkeypatch, most_descriptors: int):
    """SimpleCPUOffloadConnector's copies, with the driver's call in this process."""
    rng, layers = random.Random(0), 3
    ids = scattered_runs(rng, 40), scattered_runs(rng, 40)
    calls = []

    def batch_memcpy(targets, sources, sizes, count, *_) -> int:
        lists = [
            np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(a))
            for a in (sources, targets, sizes)
        ]
        copy(*lists)
        calls.append(count)
        return 0

    monkeypatch.setattr(cuda_mem_ops, "_batch_memcpy", (batch_memcpy, 0))
    monkeypatch.setattr(cuda_mem_ops, "_max_batch_descriptors", most_descriptors)
    monkeypatch.setattr(cuda_mem_ops, "_resolve_batch_memcpy", lambda: (None, 0))
    sides = [
        {
            str(i): torch.randint(256, (NUM_BLOCKS, BLOCK_BYTES), dtype=torch.uint8)
            for i in range(layers)
        }
        for _ in range(2)
    ]
    params = cuda_mem_ops.build_params(*sides, SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(cuda_mem_ops, "_batch_memcpy", (batch_memcpy, 0))
    cuda_mem_ops.copy_blocks(*ids, params)

    assert sum(calls) == layers * count_runs(*ids) < layers * 40
    assert max(calls) <= (most_descriptors or sum(calls))
    for source, target in zip(sides[0].values(), sides[1].values()):
        assert torch.equal(source[list(ids[0])], target[list(ids[1])])
