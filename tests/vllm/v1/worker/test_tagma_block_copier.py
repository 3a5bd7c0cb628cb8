# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""`BlockCopier` copies what upstream's `copy_kv_cache_blocks_inplace` copies.

Without a GPU the kernel runs in Triton's interpreter: set TRITON_INTERPRET=1.
"""

# ruff: noqa: E402
from collections.abc import Callable

import numpy as np
import pytest
import torch

from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON

if not HAS_TRITON:
    pytest.skip(
        "no Triton: use a GPU, or set TRITON_INTERPRET=1", allow_module_level=True
    )
if current_platform.is_cpu():
    # Puts CPU buffers in the place of UVA ones, before those are imported.
    import vllm.v1.worker.cpu.shm  # noqa: F401

from vllm.v1.worker.gpu import tagma_block_copier
from vllm.v1.worker.gpu.tagma_block_copier import BlockCopier, CopyPlan
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

# Nothing here outlives a test.
pytestmark = pytest.mark.skip_global_cleanup

DEVICE = torch.device(current_platform.device_type)
NUM_BLOCKS = 12
# Small ones, for the interpreter.
TILE_BYTES = 64

Caches = list[torch.Tensor]


def raw(num_bytes: int, rng: np.random.Generator) -> torch.Tensor:
    data = rng.integers(0, 256, num_bytes, dtype=np.uint8)
    return torch.from_numpy(data).to(DEVICE)


def a_storage_each(rng: np.random.Generator) -> Caches:
    return [raw(NUM_BLOCKS * 48, rng).view(NUM_BLOCKS, 2, 24) for _ in range(3)]


def kernel_blocks(rng: np.random.Generator) -> Caches:
    """Two of the kernel's blocks to one of the scheduler's."""
    caches = [raw(NUM_BLOCKS * 96 + 96, rng) for _ in range(2)]
    return [cache[96:].view(2 * NUM_BLOCKS, 48) for cache in caches]


def heads_apart(rng: np.random.Generator) -> Caches:
    """Each head's blocks are a region of their own."""
    storage = raw(2 * 2 * NUM_BLOCKS * 32, rng).view(2, 2, NUM_BLOCKS, 32)
    return [layer.permute(1, 0, 2) for layer in storage]


def packed(rng: np.random.Generator) -> Caches:
    """All layers of a block are together and fill the storage."""
    storage = raw(NUM_BLOCKS * 3 * 40, rng).view(NUM_BLOCKS, 3, 40)
    return list(storage.unbind(1))


def packed_and_padded(rng: np.random.Generator) -> Caches:
    """As packed, with bytes between and behind that belong to no layer."""
    storage = raw(NUM_BLOCKS * 128 + 64, rng)[: NUM_BLOCKS * 128]
    rows = storage.view(NUM_BLOCKS, 128)
    return [rows[:, 16:64].view(NUM_BLOCKS, 3, 16)[:, :, :12], rows[:, 80:120]]


def shared_by_layers(rng: np.random.Generator) -> Caches:
    first, second = a_storage_each(rng)[:2]
    return [first, second, first, first.view(NUM_BLOCKS, 48)]


def odd_bytes(rng: np.random.Generator) -> Caches:
    """No number of bytes is a multiple of four."""
    return [raw(NUM_BLOCKS * 7 + 2, rng)[1:-1].view(NUM_BLOCKS, 7)]


def several_tiles(rng: np.random.Generator) -> Caches:
    size = 2 * TILE_BYTES + 16
    return [raw(NUM_BLOCKS * size, rng).view(torch.bfloat16).view(NUM_BLOCKS, -1)]


LAYOUTS = (
    a_storage_each,
    kernel_blocks,
    heads_apart,
    packed,
    packed_and_padded,
    shared_by_layers,
    odd_bytes,
    several_tiles,
)


def random_copies(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return copies of which each has a target of its own, in any order."""
    kind = rng.choice(["any", "cycles", "shift", "apart"])
    blocks = rng.permutation(NUM_BLOCKS)
    if kind == "cycles":
        copies = zip(rng.permutation(NUM_BLOCKS), blocks)
    elif kind == "shift":
        distance = int(rng.integers(1, 4)) * int(rng.choice([-1, 1]))
        copies = ((b, b + distance) for b in blocks if 0 <= b + distance < NUM_BLOCKS)
    elif kind == "apart":
        copies = zip(blocks[: NUM_BLOCKS // 2], blocks[NUM_BLOCKS // 2 :])
    else:
        targets = blocks[: rng.integers(0, NUM_BLOCKS + 1)]
        copies = ((rng.integers(0, NUM_BLOCKS), target) for target in targets)
    return [(int(source), int(target)) for source, target in copies]


def storages(caches: Caches) -> list[bytes]:
    return [bytes(cache.untyped_storage().tolist()) for cache in caches]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(4))
def test_copies_what_upstream_copies(
    layout: Callable[[np.random.Generator], Caches],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """In every layout, with chains, trees and cycles; no other byte changes."""
    monkeypatch.setattr(tagma_block_copier, "TILE_BYTES", TILE_BYTES)
    ours, upstreams = (layout(np.random.default_rng(seed)) for _ in range(2))
    copier = BlockCopier(ours, NUM_BLOCKS)
    assert storages(ours) == storages(upstreams)
    rng = np.random.default_rng([seed, 1])
    for _ in range(3):
        copies = random_copies(rng)
        copier.copy(copies)
        copy_kv_cache_blocks_inplace(upstreams, NUM_BLOCKS, copies)
        assert storages(ours) == storages(upstreams), copies


def made(plan: CopyPlan, blocks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the blocks after a plan: its sequences take turns at random."""

    def steps(row):
        first, end, saved_source, saved_target = row
        saved = blocks[saved_source]
        yield
        for source, target, count in plan.runs[first:end]:
            for i in range(count):
                blocks[target + i] = blocks[source + i]
                yield
        if saved_target >= 0:
            blocks[saved_target] = saved

    running = [steps(row) for row in plan.sequences]
    while running:
        chosen = rng.integers(len(running))
        if next(running[chosen], running) is running:
            del running[chosen]
    return blocks


@pytest.mark.parametrize("seed", range(300))
def test_sequences_may_run_in_any_order(seed: int):
    """A launch's programs run side by side: no two may meet in a block."""
    rng = np.random.default_rng(seed)
    copies = random_copies(rng)
    expected = np.arange(NUM_BLOCKS)
    for source, target in copies:
        expected[target] = source
    result = made(CopyPlan.of(copies), np.arange(NUM_BLOCKS), rng)
    assert np.array_equal(result, expected)


def test_neighbours_are_a_run():
    """A window that moves as a whole is a few runs, whatever order it is listed in."""
    copies = [(100 + i, i) for i in range(2 * tagma_block_copier.MAX_RUN + 1)]
    plan = CopyPlan.of(copies[::-1])
    most = tagma_block_copier.MAX_RUN
    last = 2 * most
    assert plan.runs.tolist() == [
        [100, 0, most],
        [100 + most, most, most],
        [100 + last, last, 1],
    ]
    assert len(plan.sequences) == 3


@pytest.mark.parametrize(
    "copies", [[], [(3, 3)], [(i, (i + 1) % NUM_BLOCKS) for i in range(NUM_BLOCKS)]]
)
def test_one_launch_at_most(copies, monkeypatch):
    """Nothing to copy is none; a cycle of all blocks is one, without a temporary."""
    copier = BlockCopier(a_storage_each(np.random.default_rng(0)), NUM_BLOCKS)
    launches = []
    monkeypatch.setattr(copier, "_launch", launches.append)
    copier.copy(copies)
    assert len(launches) == (len(copies) > 1)
