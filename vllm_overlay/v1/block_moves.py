# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Copies of a step that move cached blocks: how they are sent, and who makes them."""

from collections.abc import Iterable

import numpy as np

from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy


class BlockMoves(list[KVCacheBlockCopy]):
    """Copies of a step, of which the first `num_moves` are the backend's own moves.

    The rest are upstream's copies-on-write. A move's target is read from the next
    forward on, its source may be given away within the step: a worker makes the moves
    before it zeroes new blocks, and the copies-on-write after that.

    Each move has a target of its own. They are ordered so that they may be made one
    after the other, except for cycles, which come last: all are meant to read before
    any writes.
    """

    num_moves: int

    def __init__(
        self,
        moves: Iterable[tuple[int, int]],
        copies_on_write: Iterable[tuple[int, int]] = (),
    ):
        """Hold copies of (source, target)."""
        super().__init__(map(KVCacheBlockCopy._make, moves))
        self.num_moves = len(self)
        self.extend(map(KVCacheBlockCopy._make, copies_on_write))

    @property
    def moves(self) -> list[KVCacheBlockCopy]:
        return self[: self.num_moves]

    @property
    def copies_on_write(self) -> list[KVCacheBlockCopy]:
        return self[self.num_moves :]

    def __reduce__(self):
        # Thousands of named tuples would be slow to send to each worker.
        ids = np.array(self, dtype=np.int32).tobytes()
        return _from_bytes, (ids, self.num_moves)


def _from_bytes(ids: bytes, num_moves: int) -> BlockMoves:
    copies = np.frombuffer(ids, dtype=np.int32).reshape(-1, 2).tolist()
    return BlockMoves(copies[:num_moves], copies[num_moves:])


class BlockMover:
    """Makes a step's moves on a worker: none, for a backend that keeps blocks."""

    def move(
        self, copies: list[KVCacheBlockCopy] | None
    ) -> list[KVCacheBlockCopy] | None:
        """Make a step's moves, and return its other copies.

        The caller zeroes blocks and makes those copies afterwards: a block that is
        moved away may be a new one in the same step.
        """
        return copies
