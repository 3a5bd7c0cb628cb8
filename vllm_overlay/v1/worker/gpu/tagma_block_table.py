# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Block tables and slot mappings that derive from a request's block ranges."""

import os
from collections.abc import Sequence

import torch

from vllm.logger import init_logger
from vllm.triton_utils import tl, triton
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.block_ranges import NULL_BLOCK_ID, BlockRanges
from vllm.v1.kv_cache_backend import UnsupportedByTagmaError
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.buffer_utils import _load_ptr
from vllm.v1.worker.gpu.range_table import MAX_RANGES_PER_REQUEST, RangeTable

logger = init_logger(__name__)


class TagmaBlockTables(BlockTables):
    """Block tables that keep a request as ranges, from the host to the kernels.

    Slot mappings and the block tables of the forward pass are computed from the
    rows of a `RangeTable`, one per group and request. The base class's staged
    `block_tables` hold only requests of more than `MAX_RANGES_PER_REQUEST` ranges.
    """

    # TAGMA_EXPAND_RANGES=0 stages and gathers all block tables as the base class
    # does: to compare, or to rule the expansion out.
    expand_ranges = os.environ.get("TAGMA_EXPAND_RANGES", "1") != "0"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.cp_size != 1:
            raise UnsupportedByTagmaError(
                f"context parallelism (cp_size={self.cp_size})",
                "its ranks interleave the tokens of a block",
                "Set --decode-context-parallel-size to 1",
            )
        # Later releases mask what a sliding window left, which needs the table.
        if getattr(self, "has_sliding_window_groups", False):
            self.expand_ranges = False
        num_rows = self.num_kv_cache_groups * self.max_num_reqs
        self.range_table = RangeTable(num_rows, self.device)
        # How many blocks of a row are in `block_tables`.
        self._num_staged_blocks = [0] * num_rows
        self._warm_kernels: set[object] = set()
        logger.info_once(
            "KV cache write path: tagma, slot mappings from at most %d block ranges "
            "per request, block tables %s",
            MAX_RANGES_PER_REQUEST,
            "expanded from them" if self.expand_ranges else "staged and gathered",
        )

    @property
    def num_fallbacks(self) -> int:
        """How often a request has passed the cap, since the start."""
        return self.range_table.num_fallbacks

    def append_block_ids(
        self,
        req_index: int,
        new_block_ids: tuple[Sequence[int], ...],
        overwrite: bool,
    ) -> None:
        """Append blocks to a request's rows, or begin them anew.

        Args:
            req_index: The request's row in every group.
            new_block_ids: The ids per group, as a list or as `BlockRanges`.
            overwrite: Whether they replace what the rows hold.

        Raises:
            RuntimeError: They are more than a row of the block table takes.
            ValueError: They are no blocks, or a block is in a request twice.

        """
        for group_id in range(self.num_kv_cache_groups):
            row_index = group_id * self.max_num_reqs + req_index
            block_ids = new_block_ids[group_id]
            if self.redirect_writes_to_null_block:
                block_ids = [NULL_BLOCK_ID] * len(block_ids)
            end = len(block_ids)
            if not overwrite:
                end += self.range_table.num_blocks(row_index)
            row_capacity = self.block_tables[group_id].gpu.shape[1]
            if end > row_capacity:
                raise RuntimeError(
                    f"Block table write for request {req_index}, group {group_id} "
                    f"exceeds row capacity ({end} > {row_capacity})"
                )
            self.range_table.append(row_index, BlockRanges.of(block_ids), overwrite)
            self.num_blocks.np[group_id, req_index] = end
            if overwrite:
                self._num_staged_blocks[row_index] = 0

    def apply_staged_writes(self) -> None:
        staged_rows = [
            row_index
            for row_index in self.range_table.dirty_rows
            if self.range_table.is_over_cap(row_index) or not self.expand_ranges
        ]
        for row_index in staged_rows:
            self._stage_block_table(row_index)
        if staged_rows:
            super().apply_staged_writes()
        self.range_table.apply_staged_writes()

    def _stage_block_table(self, row_index: int) -> None:
        group_id, req_index = divmod(row_index, self.max_num_reqs)
        begin = self._num_staged_blocks[row_index]
        block_ids = self.range_table.block_ids(row_index, begin)
        self.block_tables[group_id].stage_write(req_index, begin, block_ids)
        self._num_staged_blocks[row_index] = begin + len(block_ids)

    def gather_block_tables(
        self,
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        out: tuple[torch.Tensor, ...] | None = None,
        out_ptrs: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, ...]:
        """Fill the batch's block tables, with the result of `BlockTables`.

        A dummy row (`idx_mapping == -1`) is left as it is.
        """
        if not self.expand_ranges or self.num_kv_cache_groups == 0:
            return super().gather_block_tables(
                idx_mapping, num_reqs_padded, out, out_ptrs, **kwargs
            )
        num_rows = num_reqs_padded
        if out is None:
            out = tuple(self.input_block_tables)
            out_ptrs = self.input_block_table_ptrs
            # Later releases also clear the rows that a larger batch left.
            if hasattr(self, "_num_dirty_rows"):
                num_rows = max(num_rows, self._num_dirty_rows)
                self._num_dirty_rows = idx_mapping.shape[0]
        else:
            assert out_ptrs is not None
            assert len(out) == self.num_kv_cache_groups
        self._launch(
            _expand_ranges_to_block_table_kernel,
            (self.num_kv_cache_groups, num_rows),
            idx_mapping,
            self.range_table.gpu,
            self.range_table.gpu.stride(0),
            self.max_num_reqs,
            self.block_table_ptrs,
            out_ptrs,
            self.block_table_strides,
            idx_mapping.shape[0],
            BLOCK_SIZE=1024,
        )
        return tuple(bt[:num_reqs_padded] for bt in out)

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
            self._launch(
                _compute_slot_mappings_tagma_kernel,
                (self.num_kv_cache_groups, idx_mapping.shape[0] + 1),
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
                PAD_ID=PAD_SLOT_ID,
                TRITON_BLOCK_SIZE=1024,
            )
        return slot_mappings[:, :num_tokens_padded]

    def _launch(self, kernel, grid: tuple[int, int], *args, **constants) -> None:
        """Launch the variant of a kernel that the rows on the device need."""
        if kernel not in self._warm_kernels:
            # Compile at warm-up what may be needed first while serving.
            self._warm_kernels.add(kernel)
            kernel[grid](*args, HAS_FALLBACK=True, **constants)
        kernel[grid](*args, HAS_FALLBACK=self._needs_fallback(), **constants)

    def _needs_fallback(self) -> bool:
        # A captured launch is replayed when other requests hold the rows.
        is_capturing = (
            self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        )
        return is_capturing or self.range_table.num_rows_over_cap > 0


@triton.jit(do_not_specialize=["num_reqs"])
def _expand_ranges_to_block_table_kernel(
    batch_idx_to_req_idx,  # [batch_size]
    range_table_ptr,  # [num_kv_cache_groups * max_num_reqs, row_width]
    range_table_stride,
    max_num_reqs,
    src_block_table_ptrs,  # [num_kv_cache_groups], used only when HAS_FALLBACK
    dst_block_table_ptrs,  # [num_kv_cache_groups]
    block_table_strides,  # [num_kv_cache_groups]
    num_reqs,  # actual number of requests (for padding)
    HAS_FALLBACK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    # kv cache group id
    group_id = tl.program_id(0)
    batch_idx = tl.program_id(1)

    stride = tl.load(block_table_strides + group_id)
    max_num_blocks = stride  # stride equals max_num_blocks for this group.
    dst_block_table_ptr = _load_ptr(dst_block_table_ptrs + group_id, tl.int32)
    dst_row_ptr = dst_block_table_ptr + batch_idx * stride

    if batch_idx >= num_reqs:
        # Zero out padded rows.
        for i in tl.range(0, max_num_blocks, BLOCK_SIZE):
            offset = i + tl.arange(0, BLOCK_SIZE)
            tl.store(dst_row_ptr + offset, 0, mask=offset < max_num_blocks)
        return

    req_idx = tl.load(batch_idx_to_req_idx + batch_idx)
    row = (group_id * max_num_reqs + req_idx).to(tl.int64)
    row_ptr = range_table_ptr + row * range_table_stride
    # idx_mapping == -1 marks a dummy request. It has no row, hence no ranges.
    num_ranges = tl.load(row_ptr, mask=req_idx >= 0, other=0)

    begin = 0
    for r in range(num_ranges):
        start = tl.load(row_ptr + 2 * r + 2)
        end = tl.load(row_ptr + 2 * r + 3)
        # A range of the null block repeats it.
        step = tl.where(start == 0, 0, 1)
        for i in range(begin, end, BLOCK_SIZE):
            offset = i + tl.arange(0, BLOCK_SIZE)
            block_ids = start + (offset - begin) * step
            tl.store(dst_row_ptr + offset, block_ids, mask=offset < end)
        begin = end

    if HAS_FALLBACK and num_ranges < 0:
        # Over the cap: -num_ranges is the number of blocks.
        src_block_table_ptr = _load_ptr(src_block_table_ptrs + group_id, tl.int32)
        src_row_ptr = src_block_table_ptr + req_idx * stride
        for i in range(0, -num_ranges, BLOCK_SIZE):
            offset = i + tl.arange(0, BLOCK_SIZE)
            block_ids = tl.load(src_row_ptr + offset, mask=offset < -num_ranges)
            tl.store(dst_row_ptr + offset, block_ids, mask=offset < -num_ranges)


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
            range_start = tl.load(starts_ptr + 2 * r)
            range_slots = positions + (range_start * kv_block_size - range_begin)
            if range_start == 0:
                # A range of the null block repeats it.
                range_slots = positions % kv_block_size
            is_in_range = (positions >= range_begin) & (positions < range_end)
            slot_ids = tl.where(is_in_range, range_slots, slot_ids)
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
