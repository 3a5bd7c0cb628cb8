# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The backend's moves of cached blocks, on a worker."""

from collections.abc import Sequence

import torch

from vllm.v1.block_moves import BlockMover, BlockMoves
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.worker.gpu.kv_connector import KVConnector
from vllm.v1.worker.gpu.tagma_block_copier import BlockCopier
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace


class TagmaBlockMover(BlockMover):
    """Makes the moves among the copies of a step, and fences loads off from them."""

    def __init__(
        self,
        kv_caches: Sequence[torch.Tensor],
        num_blocks: int,
        kv_connector: KVConnector,
    ):
        """Prepare to move blocks.

        Args:
            kv_caches: The layers' caches, blocks in dimension 0.
            num_blocks: The scheduler's blocks.
            kv_connector: What waits for the moves before it loads into blocks.

        """
        self._kv_caches = kv_caches
        self._num_blocks = num_blocks
        self._kv_connector = kv_connector
        self._copier: BlockCopier | None = None
        if kv_caches and kv_caches[0].device.type != "cpu":
            self._copier = BlockCopier(kv_caches, num_blocks)

    def move(
        self, copies: list[KVCacheBlockCopy] | None
    ) -> list[KVCacheBlockCopy] | None:
        if not isinstance(copies, BlockMoves):
            return copies
        self._copy(copies.moves)
        if (event := self._recorded_event()) is not None:
            self._kv_connector.load_after(event)
        return copies.copies_on_write

    def _copy(self, moves: list[KVCacheBlockCopy]) -> None:
        if self._copier is not None:
            self._copier.copy(moves)
        else:
            copy_kv_cache_blocks_inplace(self._kv_caches, self._num_blocks, moves)

    def _recorded_event(self) -> torch.Event | None:
        """Return an event that completes with the copies; None if they are made."""
        if self._copier is None:
            return None
        event = torch.Event(blocking=True)
        event.record()
        return event
