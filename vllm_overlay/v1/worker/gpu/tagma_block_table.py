# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Block tables and slot mappings that derive from a request's block ranges."""

import os
from collections.abc import Sequence

import torch

from vllm.logger import init_logger
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.block_ranges import NULL_BLOCK_ID, BlockRanges
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.range_table import MAX_RANGES_PER_REQUEST, RangeTable
from vllm.v1.worker.gpu.tagma_kernels import (
    _compute_slot_mappings_tagma_kernel,
    _expand_ranges_to_block_table_kernel,
)

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

    # Of later releases: the rows that the last batch wrote.
    _num_dirty_rows: int

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
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
