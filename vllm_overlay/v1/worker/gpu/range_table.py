# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Table of block ranges, one row per request, on the host and on the device."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise

import torch

from vllm.logger import init_logger
from vllm.v1.block_ranges import NULL_BLOCK_ID, BlockRanges
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

logger = init_logger(__name__)

MAX_RANGES_PER_REQUEST = 256


class RangeTable:
    """Rows of block ranges, of which the device gets what has changed.

    A row is a list of int32:

        num_ranges, cum[0], start[0], cum[1], start[1], ..., cum[num_ranges]

    Range `r` holds the blocks `cum[r]` to `cum[r + 1] - 1` of the request, in the
    physical blocks from `start[r]` on, or all of them in the null block if that is
    its start. `cum[0]` is 0 and the last `cum` is the number of blocks.

    A row of more than `MAX_RANGES_PER_REQUEST` ranges stays whole on the host. On
    the device it is its negated number of blocks, which tells a kernel to look
    elsewhere.
    """

    ROW_WIDTH = 2 * MAX_RANGES_PER_REQUEST + 2

    def __init__(self, num_rows: int, device: torch.device):
        self._staged = StagedWriteTensor(
            (num_rows, self.ROW_WIDTH), dtype=torch.int32, device=device
        )
        self._rows = [[0, 0] for _ in range(num_rows)]
        # First block of each range of a row and the one behind its last, ascending.
        self._bounds: list[list[int]] = [[] for _ in range(num_rows)]
        # Row -> its first changed cell. Staged writes are applied in no order, so
        # a row is staged once a step, by `apply_staged_writes`.
        self._dirty: dict[int, int] = {}
        # Rows that are over the cap on the device.
        self._rows_over_cap: set[int] = set()
        # How often a row has passed the cap.
        self.num_fallbacks = 0

    @property
    def gpu(self) -> torch.Tensor:
        """The device's rows, [num_rows, ROW_WIDTH] of int32."""
        return self._staged.gpu

    @property
    def num_rows_over_cap(self) -> int:
        return len(self._rows_over_cap)

    @property
    def dirty_rows(self) -> tuple[int, ...]:
        """The rows that have changed since `apply_staged_writes`."""
        return tuple(self._dirty)

    def num_blocks(self, row_index: int) -> int:
        return self._rows[row_index][-1]

    def is_over_cap(self, row_index: int) -> bool:
        return len(self._rows[row_index]) > self.ROW_WIDTH

    def block_ids(self, row_index: int, begin: int = 0) -> list[int]:
        """Return the ids of a row's blocks from the one at index `begin` on."""
        row = self._rows[row_index]
        first = len(row) - 1
        while first > 1 and row[first] > begin:
            first -= 2
        held = BlockRanges(_ranges(row[first:]))
        return held[begin - row[first] :]

    def append(self, row_index: int, blocks: BlockRanges, overwrite: bool) -> None:
        """Append blocks to a row, or make them the row.

        Raises:
            ValueError: A block would be in the row twice; nothing has changed.

        """
        if not blocks and not overwrite:
            return
        if overwrite:
            row, bounds = [0, 0], []
        else:
            row, bounds = self._rows[row_index], self._bounds[row_index]
        self._bounds[row_index] = _with_bounds(bounds, blocks)
        old_len = len(row)
        _extend(row, blocks)
        if len(row) > self.ROW_WIDTH >= old_len:
            self._count_fallback()
        # Growing the last range moves the last cell alone.
        only_last_changed = len(row) == old_len and not overwrite
        first_changed = len(row) - 1 if only_last_changed else 0
        self._rows[row_index] = row
        self._dirty[row_index] = min(
            first_changed, self._dirty.get(row_index, first_changed)
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
        """Write the changed cells of the changed rows to the device."""
        for row_index, first_changed in self._dirty.items():
            row = self._rows[row_index]
            if self.is_over_cap(row_index):
                self._staged.stage_write(row_index, 0, [-row[-1]])
                self._rows_over_cap.add(row_index)
            else:
                self._staged.stage_write(row_index, first_changed, row[first_changed:])
                self._rows_over_cap.discard(row_index)
        self._dirty.clear()
        self._staged.apply_write()


def _extend(row: list[int], blocks: BlockRanges) -> None:
    """Append blocks to a row; adjacent ones share a range."""
    for start, count in blocks.ranges:
        num_blocks = row[-1]
        next_id = row[-2] and row[-2] + num_blocks - row[-3] if len(row) > 2 else None
        if start == next_id:
            row[-1] += count
        else:
            row += (start, num_blocks + count)
    row[0] = len(row) // 2 - 1


def _with_bounds(bounds: list[int], blocks: BlockRanges) -> list[int]:
    """Return the bounds with those of more blocks; the list may be changed.

    Raises:
        ValueError: A block would be there twice: two positions of a request would
            overwrite each other's KV. Nothing has changed.

    """
    if len(blocks.ranges) == 1:
        # As a decoding request grows. Bounds at odd places are ends.
        ((start, count),) = blocks.ranges
        if start == NULL_BLOCK_ID:
            return bounds
        place = bisect_right(bounds, start)
        if place % 2 or place != bisect_left(bounds, start + count):
            raise _contradiction(start)
        if place and bounds[place - 1] == start:
            bounds[place - 1] += count
        else:
            bounds[place:place] = (start, start + count)
        return bounds
    held = list(zip(bounds[::2], bounds[1::2]))
    held += [
        (start, start + count)
        for start, count in blocks.ranges
        if start != NULL_BLOCK_ID
    ]
    bounds = [bound for pair in sorted(held) for bound in pair]
    if bounds != sorted(bounds):
        raise _contradiction(next(b for a, b in pairwise(bounds) if b < a))
    return bounds


def _contradiction(block_id: int) -> ValueError:
    return ValueError(
        f"the block ranges of a request contradict each other: block {block_id} "
        "would be in it twice"
    )


def _ranges(cells: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (start, count) of cells that begin and end with a `cum`."""
    for begin, start, end in zip(cells[::2], cells[1::2], cells[2::2]):
        yield start, end - begin
