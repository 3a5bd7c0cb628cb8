# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Shared host memory in which a tensor's chunks lie one behind the other."""

from collections.abc import Iterator

import torch
from typing_extensions import override

from vllm.utils.math_utils import round_up
from vllm.v1.kv_offload.cpu.gpu_worker import MAX_HOST_REGISTER_CHUNK_BYTES
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion


class TensorOffloadRegion(SharedOffloadRegion):
    """A region for workers only, with the chunks of each tensor in one piece.

    Upstream's has a row for each chunk, with the pages of all tensors, as secondary
    tiers read it. Neighbouring chunks of a tensor are then apart by a row, and no two
    copies of a transfer can be merged.

    A region of several registrations stays in rows: these end at rows, not at pages.
    """

    @property
    def _stays_in_rows(self) -> bool:
        return self.total_size_bytes > MAX_HOST_REGISTER_CHUNK_BYTES

    def iter_worker_slot_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the pages that this worker uses, as (offset, bytes); since v0.33.0."""
        if self._stays_in_rows:
            yield from super().iter_worker_slot_ranges()
            return
        assert self.rank is not None
        # v0.32.0 keeps the end of the worker's area in a row, not its size.
        size = self._worker_area_end // (self.rank + 1) * self.num_chunks
        start = self.rank * size
        first = start - start % self.page_size
        yield first, round_up(start + size, self.page_size) - first

    @override
    def create_next_worker_view(self, tensor_page_size: int) -> torch.Tensor:
        """Return the next tensor's chunks: int8, [num_chunks, tensor_page_size]."""
        if self._stays_in_rows:
            return super().create_next_worker_view(tensor_page_size)
        end = self._worker_offset + tensor_page_size
        assert end <= self._worker_area_end
        # What comes before in a row comes before in the region, once a chunk.
        first, last = self._worker_offset * self.num_chunks, end * self.num_chunks
        view = self.base_tensor[first:last].view(self.num_chunks, tensor_page_size)
        self._worker_offset = end
        self._views.append(view)
        return view
