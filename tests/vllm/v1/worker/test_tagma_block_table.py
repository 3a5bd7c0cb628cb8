# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Slot mappings of `TagmaBlockTables`, against numpy and the paged kernel.

Without a GPU they run in Triton's interpreter: set TRITON_INTERPRET=1.
"""

# ruff: noqa: E402
from collections.abc import Sequence

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

from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.kv_cache_backend import UnsupportedByTagmaError
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.tagma_block_table import (
    MAX_RANGES_PER_REQUEST,
    TagmaBlockTables,
)

# Nothing here outlives a test, and the clean-up would take most of the time.
pytestmark = pytest.mark.skip_global_cleanup

DEVICE = torch.device(current_platform.device_type)


def make_tables(
    cls: type[BlockTables] = TagmaBlockTables,
    block_sizes: Sequence[int] = (4,),
    max_num_reqs: int = 4,
    max_num_tokens: int = 64,
    max_num_blocks: int = 1024,
    **kwargs,
) -> BlockTables:
    return cls(
        block_sizes=list(block_sizes),
        max_num_reqs=max_num_reqs,
        max_num_batched_tokens=max_num_tokens,
        max_num_blocks_per_group=[max_num_blocks] * len(block_sizes),
        device=DEVICE,
        **kwargs,
    )


def append(
    tables: BlockTables, req: int, *block_ids: list[int], overwrite: bool = True
) -> None:
    """Append one list of blocks per group, and apply it."""
    tables.append_block_ids(req, block_ids, overwrite)
    tables.apply_staged_writes()


def all_slots(
    tables: BlockTables, reqs: list[int], positions: list[list[int]], **kwargs
) -> np.ndarray:
    """Return the whole slot buffer, with its padding, for a batch."""
    query_lens = [len(p) for p in positions]
    tables.compute_slot_mappings(
        torch.tensor(reqs, dtype=torch.int32, device=DEVICE),
        torch.tensor([0, *np.cumsum(query_lens)], dtype=torch.int32, device=DEVICE),
        torch.tensor(np.concatenate(positions), dtype=torch.int64, device=DEVICE),
        num_tokens_padded=sum(query_lens),
        **kwargs,
    )
    return tables.slot_mappings.cpu().numpy().copy()


def slots(tables: BlockTables, req: int, positions: list[int]) -> list[int]:
    """Return the slots of one request's positions in the first group."""
    return all_slots(tables, [req], [positions])[0, : len(positions)].tolist()


def device_row(tables: TagmaBlockTables, row: int, length: int) -> list[int]:
    return tables.range_table.gpu[row, :length].tolist()


def expected_slots(
    block_ids: list[int], block_size: int, positions: np.ndarray
) -> np.ndarray:
    blocks = np.array(block_ids, dtype=np.int64)[positions // block_size]
    return blocks * block_size + positions % block_size


def scattered_blocks(num_ranges: int, first: int = 1) -> list[int]:
    """Return one block of each of so many ranges."""
    return list(range(first, first + 2 * num_ranges, 2))


def random_blocks(rng: np.random.Generator, num_blocks: int) -> list[int]:
    """Return blocks that form 1 to 300 ranges, over the cap now and then."""
    most = min(num_blocks, rng.choice([2, 20, 300]))
    num_ranges = int(rng.integers(1, most + 1))
    cuts = rng.choice(num_blocks - 1, num_ranges - 1, replace=False) + 1
    bounds = [0, *sorted(cuts.tolist()), num_blocks]
    starts = rng.integers(1, 1 << 20, num_ranges).tolist()
    return [
        start + i
        for start, begin, end in zip(starts, bounds, bounds[1:])
        for i in range(end - begin)
    ]


def random_positions(rng: np.random.Generator, context_len: int) -> np.ndarray:
    """Return the positions of a decode, speculative or chunked prefill step."""
    kind = rng.choice(["decode", "speculative", "chunk", "unordered"])
    most = {"decode": 1, "speculative": 6}.get(kind, 1500)
    query_len = int(rng.integers(1, min(most, context_len) + 1))
    end = int(rng.integers(query_len, context_len + 1))
    positions = np.arange(end - query_len, end)
    return rng.permutation(positions) if kind == "unordered" else positions


def append_in_two_steps(
    rng: np.random.Generator, requests: list[list[list[int]]], *both: BlockTables
) -> None:
    """Append every request's blocks per group, in two parts."""
    cuts = [[int(rng.integers(len(b) + 1)) for b in blocks] for blocks in requests]
    for is_first in (True, False):
        for req, blocks in enumerate(requests):
            part = tuple(
                ids[:cut] if is_first else ids[cut:]
                for ids, cut in zip(blocks, cuts[req])
            )
            for tables in both:
                tables.append_block_ids(req, part, overwrite=is_first)
        # Both parts are applied in one go now and then.
        if not is_first or rng.random() < 0.8:
            for tables in both:
                tables.apply_staged_writes()


@pytest.mark.parametrize("seed", range(200))
def test_slots_equal_paged(seed: int):
    """Every batch gets the paged kernel's slots, up to the end of the buffer."""
    rng = np.random.default_rng(seed)
    num_groups = int(rng.integers(1, 5))
    if rng.random() < 0.8:
        block_sizes = (2 ** rng.integers(0, 9, num_groups)).tolist()
    else:
        block_sizes = rng.integers(1, 257, num_groups).tolist()
    num_reqs = 64 if seed % 50 == 0 else int(rng.integers(1, 6))
    max_len = int(rng.integers(1, 600)) * min(block_sizes)
    context_lens = rng.integers(1, max_len + 1, num_reqs).tolist()
    requests = [
        [random_blocks(rng, -(-n // size)) for size in block_sizes]
        for n in context_lens
    ]

    batch = rng.permutation(num_reqs)[: rng.integers(1, num_reqs + 1)].tolist()
    positions = [random_positions(rng, context_lens[req]) for req in batch]
    reqs = [-1 if rng.random() < 0.1 else req for req in batch]
    num_tokens = sum(len(p) for p in positions)
    max_num_tokens = num_tokens + int(rng.integers(2000))

    paged, tagma = (
        make_tables(cls, block_sizes, num_reqs, max_num_tokens, max_len)
        for cls in (BlockTables, TagmaBlockTables)
    )
    append_in_two_steps(rng, requests, paged, tagma)
    actual = all_slots(tagma, reqs, positions)
    np.testing.assert_array_equal(actual, all_slots(paged, reqs, positions))
    for group, size in enumerate(block_sizes):
        expected = np.full(max_num_tokens, PAD_SLOT_ID)
        expected[:num_tokens] = np.concatenate(
            [
                np.full(len(p), PAD_SLOT_ID)
                if req < 0
                else expected_slots(requests[req][group], size, p)
                for req, p in zip(reqs, positions)
            ]
        )
        np.testing.assert_array_equal(actual[group], expected)


def test_several_ranges():
    """A tile's positions may lie in many ranges, in any order."""
    tables = make_tables(max_num_tokens=4096)
    blocks = [7, 8, 20, 3, 4, 5]
    append(tables, 1, blocks)
    positions = np.arange(24)
    for order in (positions, positions[::-1], positions[7:17], positions[[23, 0, 11]]):
        assert slots(tables, 1, order) == expected_slots(blocks, 4, order).tolist()

    # Ranges begin inside, at and across the bounds of the kernel's tiles.
    blocks = [*range(500, 630), *range(10, 136), *range(900, 1300)]
    append(tables, 1, blocks)
    positions = np.arange(3, 4 * len(blocks))
    assert slots(tables, 1, positions) == expected_slots(blocks, 4, positions).tolist()


def test_slots_come_from_the_ranges():
    """The block table is not read for a request within the cap."""
    tables = make_tables()
    append(tables, 0, [9, 10, 2])
    tables.block_tables[0].gpu.fill_(77)
    assert slots(tables, 0, [0, 4, 11]) == [36, 40, 11]


def test_slots_beyond_int32():
    """Slots are 64-bit, within the cap and over it."""
    tables = make_tables(block_sizes=(256,))
    far = 2**31 - 2 * MAX_RANGES_PER_REQUEST - 3
    for blocks in ([far], scattered_blocks(MAX_RANGES_PER_REQUEST + 1, far)):
        append(tables, 0, blocks)
        assert slots(tables, 0, [0, 255]) == [far * 256, far * 256 + 255]
    assert tables.num_fallbacks == 1


@pytest.mark.parametrize("num_blocks", [2, MAX_RANGES_PER_REQUEST + 1])
def test_padding_outside_ranges(num_blocks: int):
    """Positions past the last block, and the buffer's rest, are padded."""
    tables = make_tables()
    stale = scattered_blocks(num_blocks + 1)
    append(tables, 0, stale)
    all_slots(tables, [0], [list(range(64))])

    blocks = stale[:num_blocks]
    append(tables, 0, blocks)
    end = 4 * num_blocks
    actual = all_slots(tables, [0], [[end - 1, end, end + 3, end + 4, end + 999, 0]])
    assert actual[0].tolist() == [
        blocks[-1] * 4 + 3,
        *[PAD_SLOT_ID] * 4,
        blocks[0] * 4,
        *[PAD_SLOT_ID] * 58,
    ]


def test_a_request_without_blocks_is_padded():
    tables = make_tables()
    append(tables, 0, [3])
    append(tables, 0, [])
    assert slots(tables, 0, [0, 1]) == [PAD_SLOT_ID] * 2


def test_dummy_rows_are_padded():
    """A dummy request of the batch gets no slot, whatever the rows hold."""
    tables = make_tables()
    for req in range(4):
        append(tables, req, [req + 1])
    actual = all_slots(tables, [-1, 2, -1], [[0, 1], [0, 1], [2, 3]])
    assert actual[0, :6].tolist() == [PAD_SLOT_ID] * 2 + [12, 13] + [PAD_SLOT_ID] * 2


def test_out_buffer_is_filled():
    """`out` takes the slots, and the persistent buffer stays."""
    tables = make_tables()
    append(tables, 0, [3])
    out = torch.zeros((1, 8), dtype=torch.int64, device=DEVICE)
    kept = all_slots(tables, [0], [[1, 2]], out=out)
    assert out.tolist() == [[13, 14] + [PAD_SLOT_ID] * 6]
    assert not kept.any()


def test_compression_merges_adjacent_blocks():
    """Adjacent blocks share a range, across appends and within one step."""
    tables = make_tables()
    append(tables, 0, [5, 6, 7])
    assert device_row(tables, 0, 4) == [1, 0, 5, 3]
    append(tables, 0, [8], overwrite=False)
    assert device_row(tables, 0, 4) == [1, 0, 5, 4]
    append(tables, 0, [10, 9], overwrite=False)
    assert device_row(tables, 0, 8) == [3, 0, 5, 4, 10, 5, 9, 6]
    for block in (10, 11, 13):
        tables.append_block_ids(0, ([block],), overwrite=False)
    tables.apply_staged_writes()
    assert device_row(tables, 0, 10) == [4, 0, 5, 4, 10, 5, 9, 8, 13, 9]


def test_overwrite_starts_anew():
    """A new request's row owes nothing to the row's last request."""
    tables = make_tables()
    append(tables, 0, [5, 6, 9])
    append(tables, 0, [10, 11])
    assert device_row(tables, 0, 4) == [1, 0, 10, 2]
    # In one step: the old request grows, then the row is given away.
    tables.append_block_ids(0, ([12],), overwrite=False)
    tables.append_block_ids(0, ([13],), overwrite=True)
    tables.apply_staged_writes()
    assert device_row(tables, 0, 4) == [1, 0, 13, 1]


def test_over_the_cap_falls_back_with_the_same_slots():
    """More ranges than the cap change no slot, and end with the request."""
    paged, tagma = make_tables(BlockTables), make_tables()

    def append_to_both(req: int, blocks: list[int], overwrite: bool) -> None:
        for tables in (paged, tagma):
            append(tables, req, blocks, overwrite=overwrite)

    def check_slots(num_blocks: int) -> None:
        end = 4 * num_blocks
        batch = [0, 1], [[0, 5, end - 5, end - 4, end - 1], [0]]
        np.testing.assert_array_equal(
            all_slots(tagma, *batch), all_slots(paged, *batch)
        )

    blocks = scattered_blocks(MAX_RANGES_PER_REQUEST)
    append_to_both(1, [40], overwrite=True)
    append_to_both(0, blocks, overwrite=True)
    assert tagma.num_fallbacks == 0
    check_slots(len(blocks))
    for num_more, block in enumerate((9000, 9001, 8000), start=1):
        append_to_both(0, [block], overwrite=False)
        assert tagma.num_fallbacks == 1
        check_slots(len(blocks) + num_more)

    append_to_both(0, blocks[::-1], overwrite=True)
    tagma.block_tables[0].gpu.fill_(77)
    check_slots(len(blocks))
    append_to_both(0, [8000], overwrite=False)
    assert tagma.num_fallbacks == 2


def test_unchanged_requests_stage_nothing():
    """A step writes to the rows of the requests that it changed alone."""
    tables = make_tables(block_sizes=(4, 8))
    for req in range(4):
        append(tables, req, [1, 2], [5, 7])
    tables.range_table.gpu.fill_(-9)
    tables.apply_staged_writes()
    append(tables, 1, [], [], overwrite=False)
    assert (tables.range_table.gpu == -9).all()

    append(tables, 2, [3], [], overwrite=False)
    changed = (tables.range_table.gpu != -9).nonzero().tolist()
    # Growing a range moves one cell, the end of it.
    assert changed == [[2, 3]]
    append(tables, 2, [], [9], overwrite=False)
    changed = (tables.range_table.gpu != -9).any(dim=1).nonzero().flatten().tolist()
    assert changed == [2, 4 + 2]


def test_mapping_disabled_group():
    """A group that maps its slots itself gets padding, over the cap as well."""
    tables = make_tables(block_sizes=(4, 8), slot_mapping_enabled=[False, True])
    for blocks in ([3], scattered_blocks(MAX_RANGES_PER_REQUEST + 1)):
        append(tables, 0, blocks, [6])
        actual = all_slots(tables, [0], [[1, 2]])
        assert actual[0].tolist() == [PAD_SLOT_ID] * 64
        assert actual[1, :2].tolist() == [49, 50]


@pytest.mark.parametrize("num_blocks", [3, MAX_RANGES_PER_REQUEST + 1])
def test_redirect_to_null_block(num_blocks: int):
    """While redirected, every position is written to the null block."""
    tables = make_tables(max_num_tokens=2048)
    tables.redirect_writes_to_null_block = True
    append(tables, 0, list(range(5, 5 + num_blocks)))
    positions = list(range(4 * num_blocks))
    assert slots(tables, 0, positions) == [p % 4 for p in positions]
    assert not tables.block_tables[0].gpu.any()


def test_read_path_equals_paged():
    """The gathered block tables are the paged ones."""
    gathered = []
    for cls in (BlockTables, TagmaBlockTables):
        tables = make_tables(cls, block_sizes=(4, 16), max_num_blocks=8)
        append(tables, 0, [4, 5, 9], [2])
        append(tables, 2, [1], [7, 8])
        idx_mapping = torch.tensor([2, 0], dtype=torch.int32, device=DEVICE)
        gathered.append(tables.gather_block_tables(idx_mapping, num_reqs_padded=3))
    for paged, tagma in zip(*gathered):
        assert torch.equal(paged, tagma)
    assert gathered[1][0].tolist()[1][:3] == [4, 5, 9]


def test_context_parallelism_is_refused():
    with pytest.raises(UnsupportedByTagmaError, match="cp_size=2"):
        make_tables(cp_size=2)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="CUDA graphs need a GPU")
def test_captured_launch_serves_later_requests():
    """A graph captured while no request was over the cap serves one that is."""
    tables = make_tables()
    batch = (
        torch.tensor([0], dtype=torch.int32, device=DEVICE),
        torch.tensor([0, 2], dtype=torch.int32, device=DEVICE),
        torch.tensor([0, 1024], dtype=torch.int64, device=DEVICE),
    )
    append(tables, 0, [3])
    tables.compute_slot_mappings(*batch, num_tokens_padded=2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = tables.compute_slot_mappings(*batch, num_tokens_padded=2)
    blocks = scattered_blocks(MAX_RANGES_PER_REQUEST + 1)
    append(tables, 0, blocks)
    graph.replay()
    torch.accelerator.synchronize()
    assert captured[0].tolist() == [blocks[0] * 4, blocks[-1] * 4]
