# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Slots and block tables of `TagmaBlockTables`, against numpy and `BlockTables`.

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
from vllm.v1.block_ranges import BlockRanges
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.range_table import MAX_RANGES_PER_REQUEST, RangeTable
from vllm.v1.worker.gpu.tagma_block_table import TagmaBlockTables

# Nothing here outlives a test, and the clean-up would take most of the time.
pytestmark = pytest.mark.skip_global_cleanup

DEVICE = torch.device(current_platform.device_type)

MAX_TOKENS = 2048


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


def gathered(
    tables: BlockTables, reqs: list[int], num_reqs_padded: int | None = None
) -> list[np.ndarray]:
    """Return the batch's rows of the block table, per group."""
    idx_mapping = torch.tensor(reqs, dtype=torch.int32, device=DEVICE)
    block_tables = tables.gather_block_tables(idx_mapping, num_reqs_padded or len(reqs))
    return [block_table.cpu().numpy().copy() for block_table in block_tables]


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


def random_positions(rng: np.random.Generator, context_len: int) -> np.ndarray:
    """Return the positions of a decode, speculative or chunked prefill step."""
    kind = rng.choice(["decode", "decode", "speculative", "chunk", "unordered"])
    most = {"decode": 1, "speculative": 6}.get(kind, rng.choice([40, 40, 40, 1500]))
    query_len = int(rng.integers(1, min(most, context_len) + 1))
    end = int(rng.integers(query_len, context_len + 1))
    positions = np.arange(end - query_len, end)
    return rng.permutation(positions) if kind == "unordered" else positions


class RandomSteps:
    """Steps that paged and tagma tables see alike, beside plain lists.

    Few requests change in a step, and its batch is small: the interpreter is slow.
    What earlier steps left behind is part of every case.
    """

    def __init__(
        self, rng: np.random.Generator, num_rows: int, expand_ranges: bool = True
    ):
        self.rng = rng
        num_groups = int(rng.choice([1, 2, 3, 4], p=[0.88, 0.04, 0.04, 0.04]))
        if rng.random() < 0.7:
            self.block_sizes = (2 ** rng.integers(0, 9, num_groups)).tolist()
        else:
            self.block_sizes = rng.integers(1, 257, num_groups).tolist()
        self.max_num_blocks = int(rng.integers(400, 1000))
        self.paged, self.tagma = (
            make_tables(
                cls,
                self.block_sizes,
                num_rows,
                max_num_tokens=MAX_TOKENS,
                max_num_blocks=self.max_num_blocks,
            )
            for cls in (BlockTables, TagmaBlockTables)
        )
        self.tagma.expand_ranges = expand_ranges
        # Request -> its blocks per group.
        self.requests: dict[int, list[list[int]]] = {}
        self.num_ranges_made = 0

    def run(self, num_changed: int, batch_size: int) -> None:
        """Change requests, then compare slots and block tables of a batch."""
        num_rows = self.paged.max_num_reqs
        changed = self.rng.choice(num_rows, min(num_changed, num_rows), replace=False)
        for req in changed.tolist():
            self._change(req)
        for tables in (self.paged, self.tagma):
            tables.apply_staged_writes()
        # The changed ones first: what a small batch leaves out is old.
        others = self.rng.permutation([r for r in self.requests if r not in changed])
        batch = [*changed.tolist(), *others.tolist()][:batch_size]
        self.rng.shuffle(batch)
        self._compare_slots(batch)
        self._compare_block_tables(batch)

    def _change(self, req: int) -> None:
        held = self.requests.setdefault(req, [[] for _ in self.block_sizes])
        # Many ranges take the interpreter long: such requests end soon.
        chance = 0.2 if max(map(len, held)) < 200 else 0.8
        overwrite = not any(held) or self.rng.random() < chance
        num_kept = int(self.rng.choice([0, 3])) if overwrite else -1
        new = []
        for group, ids in enumerate(held):
            if overwrite:
                held[group] = ids = ids[:num_kept]
            more = self._new_blocks(ids)
            new.append([*ids, *more] if overwrite else more)
            ids += more
        self.paged.append_block_ids(req, tuple(new), overwrite)
        as_ranges = self.rng.random() < 0.5
        self.tagma.append_block_ids(
            req, tuple(BlockRanges.of(n) if as_ranges else n for n in new), overwrite
        )

    def _new_blocks(self, held: list[int]) -> list[int]:
        """Return up to 300 ranges of blocks that the request does not hold."""
        ids = []
        if self.rng.random() < 0.1:
            ids += [0] * int(self.rng.integers(1, 300))
        elif held and held[-1] and self.rng.random() < 0.5:
            first = held[-1] + 1
            ids += range(first, first + int(self.rng.integers(1, 30)))
        most = int(self.rng.choice([1, 2, 5, 40, 300], p=[0.5, 0.3, 0.14, 0.03, 0.03]))
        longest = int(self.rng.choice([2, 5, 50]))
        num_ranges = int(self.rng.integers(1, most + 1))
        for length in self.rng.integers(1, longest, num_ranges):
            # Every range has room to grow.
            self.num_ranges_made += 1
            window = max(held + ids, default=0) // 1024 + int(self.rng.integers(1, 4))
            ids += range(window * 1024, window * 1024 + int(length))
        return ids[: self.max_num_blocks - len(held)]

    def _compare_slots(self, batch: list[int]) -> None:
        reqs, positions = [], []
        for req in batch:
            blocks = self.requests[req]
            context_len = min(
                len(ids) * size for ids, size in zip(blocks, self.block_sizes)
            )
            room = MAX_TOKENS - sum(map(len, positions))
            new = random_positions(self.rng, context_len)[:room]
            if len(new):
                reqs.append(-1 if self.rng.random() < 0.1 else req)
                positions.append(new)
        actual = all_slots(self.tagma, reqs, positions)
        np.testing.assert_array_equal(actual, all_slots(self.paged, reqs, positions))
        for group, size in enumerate(self.block_sizes):
            expected = np.full(actual.shape[1], PAD_SLOT_ID)
            end = 0
            for req, p in zip(reqs, positions):
                if req >= 0:
                    ids = self.requests[req][group]
                    expected[end : end + len(p)] = expected_slots(ids, size, p)
                end += len(p)
            np.testing.assert_array_equal(actual[group], expected)

    def _compare_block_tables(self, batch: list[int]) -> None:
        num_padded = int(self.rng.integers(len(batch), self.paged.max_num_reqs + 1))
        num_padded = min(num_padded, len(batch) + 2)
        actual = gathered(self.tagma, batch, num_padded)
        for group, table in enumerate(gathered(self.paged, batch, num_padded)):
            np.testing.assert_array_equal(actual[group], table)
            for row, req in zip(actual[group], batch):
                ids = self.requests[req][group]
                np.testing.assert_array_equal(row[: len(ids)], ids)
            assert not actual[group][len(batch) :].any()
        # What is left behind the batch and behind its blocks, too.
        for paged, tagma in zip(
            self.paged.input_block_tables, self.tagma.input_block_tables
        ):
            assert torch.equal(paged, tagma)


@pytest.mark.parametrize("seed", range(100))
def test_equal_to_paged(seed: int):
    """20 steps each: slots and block tables are the paged kernels' and numpy's."""
    rng = np.random.default_rng(seed)
    num_rows = int(rng.choice([1, 3, 8, 512], p=[0.2, 0.4, 0.3, 0.1]))
    steps = RandomSteps(rng, num_rows, expand_ranges=seed % 10 > 0)
    for _ in range(20):
        most = int(rng.choice([1, 1, 2]))
        steps.run(num_changed=most, batch_size=most)
    assert steps.num_ranges_made > 20


@pytest.mark.parametrize(("seed", "batch_size"), [(0, 512), (1, 96), (2, 32), (3, 16)])
def test_large_batches_equal_paged(seed: int, batch_size: int):
    rng = np.random.default_rng(seed)
    steps = RandomSteps(rng, batch_size)
    # The first launches are double, to compile for serving.
    steps.run(num_changed=1, batch_size=1)
    steps.run(num_changed=batch_size, batch_size=batch_size)


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


def test_block_tables_come_from_the_ranges():
    """Requests within the cap are neither staged nor gathered."""
    tables = make_tables(max_num_blocks=8)
    append(tables, 0, [9, 10, 2])
    append(tables, 0, [3], overwrite=False)
    assert not tables.block_tables[0].gpu.any()
    tables.block_tables[0].gpu.fill_(77)
    assert gathered(tables, [0])[0].tolist() == [[9, 10, 2, 3, 0, 0, 0, 0]]


@pytest.mark.parametrize("expand_ranges", [True, False])
def test_block_tables_equal_paged_when_rows_shrink_and_move(expand_ranges: bool):
    """Padded rows are cleared; what lies behind a row's blocks is kept, as paged."""
    both = []
    for cls in (BlockTables, TagmaBlockTables):
        tables = make_tables(cls, block_sizes=(4, 16), max_num_blocks=8)
        tables.expand_ranges = expand_ranges
        append(tables, 0, [4, 5, 9], [2])
        append(tables, 2, [1], [0, 0, 0, 7, 8])
        steps = [gathered(tables, [2, 0], 4)]
        append(tables, 2, [6], [3])
        steps.append(gathered(tables, [0, 2], 3))
        steps.append(gathered(tables, [2]))
        both.append(steps)
    for paged, tagma in zip(*both):
        for paged_group, tagma_group in zip(paged, tagma):
            np.testing.assert_array_equal(paged_group, tagma_group)
    assert both[1][0][1].tolist()[0] == [0, 0, 0, 7, 8, 0, 0, 0]
    assert both[1][1][0].tolist() == [[4, 5, 9] + [0] * 5, [6, 5, 9] + [0] * 5, [0] * 8]


def test_out_tables_are_filled():
    """`out` takes the block tables, and the persistent ones stay."""
    tables = make_tables(max_num_blocks=4)
    append(tables, 1, [3, 4])
    out = torch.full((4, 4), 7, dtype=torch.int32, device=DEVICE)
    tables.gather_block_tables(
        torch.tensor([1], dtype=torch.int32, device=DEVICE),
        num_reqs_padded=2,
        out=(out,),
        out_ptrs=torch.tensor([out.data_ptr()], dtype=torch.uint64, device=DEVICE),
    )
    assert out.tolist() == [[3, 4, 7, 7], [0] * 4, [7] * 4, [7] * 4]
    assert not tables.input_block_tables[0].any()


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


def test_dummy_runs_read_and_write_nothing_real():
    """Dummy tables are zero and dummy slots padded, whatever a step left there."""
    tables = make_tables(max_num_blocks=8)
    append(tables, 0, [3, 4])
    gathered(tables, [0])
    slots(tables, 0, [0, 7])
    assert not tables.get_dummy_block_tables(2)[0].any()
    assert tables.get_dummy_slot_mappings(2).tolist() == [[PAD_SLOT_ID] * 2]
    assert (tables.slot_mappings == PAD_SLOT_ID).all()
    # The next step owes nothing to the dummy one.
    assert gathered(tables, [0])[0][0, :3].tolist() == [3, 4, 0]
    assert slots(tables, 0, [0, 7]) == [12, 19]


def test_addresses_persist():
    """CUDA graphs find every step's tables and slots where the first ones were."""
    tables = make_tables(max_num_blocks=8)

    def addresses() -> set[tuple[int, int]]:
        real = tables.gather_block_tables(
            torch.tensor([0], dtype=torch.int32, device=DEVICE), num_reqs_padded=1
        )
        batch = torch.tensor([0, 1], dtype=torch.int32, device=DEVICE)
        mapped = tables.compute_slot_mappings(batch[:1], batch, batch.long(), 1)
        return {
            (real[0].data_ptr(), mapped.data_ptr()),
            (
                tables.get_dummy_block_tables(1)[0].data_ptr(),
                tables.get_dummy_slot_mappings(1).data_ptr(),
            ),
        }

    seen = addresses()
    for blocks in ([3, 4], scattered_blocks(MAX_RANGES_PER_REQUEST + 1)[:8], []):
        append(tables, 0, blocks)
        seen |= addresses()
    assert len(seen) == 1


def test_a_dummy_row_of_the_block_table_is_left_alone():
    tables = make_tables(max_num_blocks=2)
    append(tables, 3, [3, 4])
    tables.input_block_tables[0].fill_(7)
    assert gathered(tables, [-1, 3])[0].tolist() == [[7, 7], [3, 4]]


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
    append(tables, 0, [12, 9], overwrite=False)
    assert device_row(tables, 0, 8) == [3, 0, 5, 4, 12, 5, 9, 6]
    for block in (10, 11, 14):
        tables.append_block_ids(0, ([block],), overwrite=False)
    tables.apply_staged_writes()
    assert device_row(tables, 0, 10) == [4, 0, 5, 4, 12, 5, 9, 8, 14, 9]


def test_null_blocks_share_a_range():
    """Windows that have slid and redirected writes leave runs of the null block."""
    tables = make_tables(max_num_tokens=4096, max_num_blocks=2000)
    blocks = [0] * 1000 + [1, 2] + [0] * 3
    append(tables, 0, blocks)
    append(tables, 0, [0], overwrite=False)
    assert device_row(tables, 0, 8) == [3, 0, 0, 1000, 1, 1002, 0, 1006]
    assert gathered(tables, [0])[0][0, :1006].tolist() == [*blocks, 0]
    positions = np.arange(3990, 4 * 1006)
    expected = expected_slots([*blocks, 0], 4, positions)
    assert slots(tables, 0, positions) == expected.tolist()


def test_ranges_are_taken_as_ids_are():
    """The scheduler may send `BlockRanges`, merged or not, in place of lists."""
    by_list, by_ranges = make_tables(), make_tables()
    append(by_list, 0, [5, 6, 7, 9, 0, 0])
    append(by_ranges, 0, BlockRanges([(5, 2), (7, 1), (9, 1), (0, 1)]))
    append(by_ranges, 0, BlockRanges([(0, 1)]), overwrite=False)
    expected = [3, 0, 5, 3, 9, 4, 0, 6]
    assert device_row(by_list, 0, 8) == device_row(by_ranges, 0, 8) == expected


def test_truncation_is_an_overwrite():
    """A row that lost its last blocks maps them no more."""
    tables = make_tables()
    append(tables, 0, [5, 6, 9, 10])
    append(tables, 0, [5, 6, 9])
    assert device_row(tables, 0, 6) == [2, 0, 5, 2, 9, 3]
    assert slots(tables, 0, [11, 12]) == [39, PAD_SLOT_ID]


@pytest.mark.parametrize(
    "blocks", [[5, 5], [8], [9, 6], [20, 7], [9, 8], [-1], [2**31]]
)
def test_contradictions_are_refused(blocks: list[int]):
    """No position may share a block with another; a refused append changes none."""
    tables = make_tables()
    append(tables, 0, [6, 7, 8, 10])
    tables.append_block_ids(0, ([6, 7, 8],), overwrite=True)
    with pytest.raises(ValueError, match="block"):
        tables.append_block_ids(0, (blocks,), overwrite=False)
    tables.apply_staged_writes()
    assert device_row(tables, 0, 4) == [1, 0, 6, 3]


@pytest.mark.parametrize("seed", range(20))
def test_just_the_blocks_that_are_in_a_row_are_refused(seed: int):
    """One range or several at a time, between, beside and across those that are."""
    rng = np.random.default_rng(seed)
    table = RangeTable(1, torch.device(DEVICE))
    held: list[int] = []
    num_refused = 0
    for _ in range(300):
        overwrite = rng.random() < 0.02
        size = int(rng.integers(1, 4))
        starts = rng.integers(1, 200, size) * (rng.random(size) < 0.9)
        counts = rng.integers(1, 6, size)
        more = BlockRanges(zip(starts.tolist(), counts.tolist()))
        expected = [*more] if overwrite else [*held, *more]
        blocks = [block for block in expected if block != 0]
        if len(blocks) == len(set(blocks)):
            table.append(0, more, overwrite)
            held = expected
        else:
            num_refused += 1
            with pytest.raises(ValueError, match="contradict"):
                table.append(0, more, overwrite)
        assert table.block_ids(0) == held
    assert 0 < num_refused < 300


def test_a_full_row_is_refused():
    tables = make_tables(max_num_blocks=3)
    append(tables, 0, [5, 6])
    with pytest.raises(RuntimeError, match=r"row capacity \(4 > 3\)"):
        append(tables, 0, [7, 8], overwrite=False)


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
        np.testing.assert_array_equal(
            gathered(tagma, [1, 0], 3), gathered(paged, [1, 0], 3)
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
    tables.input_block_tables[0].fill_(7)
    assert not gathered(tables, [0])[0][0, :num_blocks].any()
    assert tables.num_fallbacks == 0


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
