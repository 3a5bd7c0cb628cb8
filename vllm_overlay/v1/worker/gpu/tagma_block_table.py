# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Block tables that derive slot mappings from a request's block ranges."""

import torch

from vllm.logger import init_logger
from vllm.triton_utils import tl, triton
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.kv_cache_backend import UnsupportedByTagmaError
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, _load_ptr

logger = init_logger(__name__)

MAX_RANGES_PER_REQUEST = 256

# [num_ranges, cum[0], start[0], ..., cum[num_ranges]], see `TagmaBlockTables`.
_ROW_WIDTH = 2 * MAX_RANGES_PER_REQUEST + 2


class TagmaBlockTables(BlockTables):
    """Block tables whose slot mappings need no table load per position.

    Beside the block table, which the read path keeps using, every group and
    request owns a row of the range table:

        num_ranges, cum[0], start[0], cum[1], start[1], ..., cum[num_ranges]

    Range `r` holds the request's blocks `cum[r]` to `cum[r + 1] - 1` in the
    physical blocks from `start[r]` on. `cum[0]` is 0 and the last `cum` is the
    number of blocks. A request of more than `MAX_RANGES_PER_REQUEST` ranges keeps
    only the negated number of its blocks, and the kernel reads the block table
    for it, until the row is overwritten.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.cp_size != 1:
            raise UnsupportedByTagmaError(
                f"context parallelism (cp_size={self.cp_size})",
                "its ranks interleave the tokens of a block",
                "Set --decode-context-parallel-size to 1",
            )
        num_rows = self.num_kv_cache_groups * self.max_num_reqs
        self.range_table = StagedWriteTensor(
            (num_rows, _ROW_WIDTH), dtype=torch.int32, device=self.device
        )
        # What the device's rows hold once the dirty ones have been written.
        self._rows = [[0, 0] for _ in range(num_rows)]
        # Row -> its first changed cell. Staged writes are applied in no order, so
        # a row is staged once a step, by `apply_staged_writes`.
        self._dirty_rows: dict[int, int] = {}
        self._rows_over_cap: set[int] = set()
        # How often a row has passed the cap.
        self.num_fallbacks = 0
        self._fallback_compiled = False

    def append_block_ids(
        self,
        req_index: int,
        new_block_ids: tuple[list[int], ...],
        overwrite: bool,
    ) -> None:
        if self.redirect_writes_to_null_block:
            new_block_ids = tuple([0] * len(ids) for ids in new_block_ids)
        super().append_block_ids(req_index, new_block_ids, overwrite)
        for group_id in range(self.num_kv_cache_groups):
            self._append_to_row(
                group_id * self.max_num_reqs + req_index,
                new_block_ids[group_id],
                overwrite,
            )

    def _append_to_row(
        self, row_index: int, block_ids: list[int], overwrite: bool
    ) -> None:
        row = self._rows[row_index]
        if overwrite:
            row[:] = (0, 0)
        elif not block_ids:
            return
        old_len = len(row)
        if row[0] < 0:
            row[0] -= len(block_ids)
        else:
            _append_ranges(row, block_ids)
            if len(row) > _ROW_WIDTH:
                row[:] = (-row[-1],)
                self._count_fallback()
        # Growing the last range moves the last cell alone.
        only_last_changed = len(row) == old_len and not overwrite
        first_changed = old_len - 1 if only_last_changed else 0
        self._dirty_rows[row_index] = min(
            first_changed, self._dirty_rows.get(row_index, first_changed)
        )

    def _count_fallback(self) -> None:
        self.num_fallbacks += 1
        logger.warning_once(
            "A request holds more than %d block ranges: its slot mappings are read "
            "from the block table. This is slower, not wrong, and hints at a "
            "fragmented KV cache.",
            MAX_RANGES_PER_REQUEST,
        )

    def apply_staged_writes(self) -> None:
        super().apply_staged_writes()
        for row_index, first_changed in self._dirty_rows.items():
            row = self._rows[row_index]
            self.range_table.stage_write(row_index, first_changed, row[first_changed:])
            if row[0] < 0:
                self._rows_over_cap.add(row_index)
            else:
                self._rows_over_cap.discard(row_index)
        self._dirty_rows.clear()
        self.range_table.apply_write()

    def compute_slot_mappings(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        num_tokens_padded: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Map positions to slots, as `BlockTables` does.

        They differ for positions past a request's last block alone: those get
        `PAD_SLOT_ID` here, and whatever the block table holds there in the base
        class.
        """
        slot_mappings = self.slot_mappings if out is None else out
        if self.num_kv_cache_groups > 0:
            batch = (idx_mapping, query_start_loc, positions)
            if not self._fallback_compiled:
                # Compile at warm-up what may be needed first while serving.
                self._launch_slot_mappings(*batch, slot_mappings, has_fallback=True)
                self._fallback_compiled = True
            self._launch_slot_mappings(
                *batch, slot_mappings, has_fallback=self._needs_fallback()
            )
        return slot_mappings[:, :num_tokens_padded]

    def _needs_fallback(self) -> bool:
        # A captured launch is replayed when other requests hold the rows.
        is_capturing = (
            self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        )
        return is_capturing or bool(self._rows_over_cap)

    def _launch_slot_mappings(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        slot_mappings: torch.Tensor,
        has_fallback: bool,
    ) -> None:
        num_reqs = idx_mapping.shape[0]
        _compute_slot_mappings_tagma_kernel[(self.num_kv_cache_groups, num_reqs + 1)](
            slot_mappings.shape[1],
            idx_mapping,
            query_start_loc,
            positions,
            self.range_table.gpu,
            self.range_table.gpu.stride(0),
            self.max_num_reqs,
            self.block_table_ptrs,
            self.block_table_strides,
            self.block_sizes_tensor,
            self.slot_mapping_enabled,
            slot_mappings,
            slot_mappings.stride(0),
            HAS_FALLBACK=has_fallback,
            PAD_ID=PAD_SLOT_ID,
            TRITON_BLOCK_SIZE=1024,  # type: ignore
        )


def _append_ranges(row: list[int], block_ids: list[int]) -> None:
    """Append blocks to a row of the range table, merging adjacent ones."""
    next_id = row[-2] + row[-1] - row[-3] if row[0] > 0 else None
    num_blocks = row[-1]
    for block_index, block_id in enumerate(block_ids, num_blocks):
        if block_id != next_id:
            # The open range ends here, and one begins whose end is yet unknown.
            row[-1] = block_index
            row += (block_id, block_index)
        next_id = block_id + 1
    row[-1] = num_blocks + len(block_ids)
    row[0] = len(row) // 2 - 1


@triton.jit
def _find_range(cums_ptr, num_ranges, block_index):
    """Return the last range that begins at or before a block of the request."""
    low = 0
    high = num_ranges
    while high - low > 1:
        middle = (low + high) // 2
        begins_before = tl.load(cums_ptr + 2 * middle) <= block_index
        low = tl.where(begins_before, middle, low)
        high = tl.where(begins_before, high, middle)
    return low


@triton.jit
def _compute_slot_mappings_tagma_kernel(
    max_num_tokens,
    idx_mapping,  # [num_reqs]
    query_start_loc,  # [num_reqs + 1]
    pos,  # [num_tokens]
    range_table_ptr,  # [num_kv_cache_groups * max_num_reqs, row_width]
    range_table_stride,
    max_num_reqs,
    block_table_ptrs,  # [num_kv_cache_groups], used only when HAS_FALLBACK
    block_table_strides,  # [num_kv_cache_groups], used only when HAS_FALLBACK
    block_sizes,  # [num_kv_cache_groups]
    slot_mapping_enabled,  # [num_kv_cache_groups]
    slot_mappings_ptr,  # [num_kv_cache_groups, max_num_tokens]
    slot_mappings_stride,
    HAS_FALLBACK: tl.constexpr,
    PAD_ID: tl.constexpr,
    TRITON_BLOCK_SIZE: tl.constexpr,
):
    # kv cache group id
    group_id = tl.program_id(0)
    batch_idx = tl.program_id(1)
    slot_mapping_ptr = slot_mappings_ptr + group_id * slot_mappings_stride

    if batch_idx == tl.num_programs(1) - 1:
        # Pad from the actual token count to the end of the buffer: CUDA graphs
        # read there, and earlier steps left valid slots behind.
        actual_num_tokens = tl.load(query_start_loc + batch_idx)
        for i in range(actual_num_tokens, max_num_tokens, TRITON_BLOCK_SIZE):
            offset = i + tl.arange(0, TRITON_BLOCK_SIZE)
            tl.store(slot_mapping_ptr + offset, PAD_ID, mask=offset < max_num_tokens)
        return

    req_state_idx = tl.load(idx_mapping + batch_idx)
    mapping_enabled = tl.load(slot_mapping_enabled + group_id)
    # int64: a product of two int32 may overflow, here and with the block size.
    row = (group_id * max_num_reqs + req_state_idx).to(tl.int64)
    row_ptr = range_table_ptr + row * range_table_stride
    cums_ptr = row_ptr + 1
    starts_ptr = row_ptr + 2
    # idx_mapping == -1 marks a dummy (or CUDA-graph padding) request. It has no
    # row, and like a group without a mapping it has no ranges: all is PAD.
    num_ranges = tl.load(row_ptr, mask=mapping_enabled & (req_state_idx >= 0), other=0)
    kv_block_size = tl.load(block_sizes + group_id).to(tl.int64)

    start_idx = tl.load(query_start_loc + batch_idx)
    end_idx = tl.load(query_start_loc + batch_idx + 1)
    for i in range(start_idx, end_idx, TRITON_BLOCK_SIZE):
        offset = i + tl.arange(0, TRITON_BLOCK_SIZE)
        # Lanes past the end repeat a position, which keeps first and last right.
        first_lane = tl.load(pos + i)
        positions = tl.load(pos + offset, mask=offset < end_idx, other=first_lane)
        first_position = tl.min(positions)
        last_position = tl.max(positions)

        # All of a range's slots are at one distance from their positions, hence
        # one descriptor serves every position of the tile that it covers.
        slot_ids = tl.full([TRITON_BLOCK_SIZE], PAD_ID, tl.int64)
        r = _find_range(cums_ptr, num_ranges, first_position // kv_block_size)
        range_begin = tl.load(cums_ptr + 2 * r, mask=r < num_ranges, other=0)
        range_begin = range_begin * kv_block_size
        while (r < num_ranges) & (range_begin <= last_position):
            range_end = tl.load(cums_ptr + 2 * (r + 1)) * kv_block_size
            range_slot = tl.load(starts_ptr + 2 * r) * kv_block_size
            is_in_range = (positions >= range_begin) & (positions < range_end)
            slot_ids = tl.where(
                is_in_range, positions + (range_slot - range_begin), slot_ids
            )
            range_begin = range_end
            r += 1

        if HAS_FALLBACK and num_ranges < 0:
            # Over the cap: -num_ranges is the number of blocks.
            block_table_ptr = _load_ptr(block_table_ptrs + group_id, tl.int32)
            block_table_stride = tl.load(block_table_strides + group_id)
            block_indices = positions // kv_block_size
            has_block = block_indices < -num_ranges
            block_numbers = tl.load(
                block_table_ptr + req_state_idx * block_table_stride + block_indices,
                mask=has_block,
                other=0,
            )
            slot_ids = tl.where(
                has_block,
                block_numbers * kv_block_size + positions % kv_block_size,
                PAD_ID,
            )

        tl.store(slot_mapping_ptr + offset, slot_ids, mask=offset < end_idx)
