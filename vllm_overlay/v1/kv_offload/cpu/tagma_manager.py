# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""CPU offloading with chunks that lie side by side.

Two decisions are apart, as in the tagma backend. Which chunks are kept, and which one
is evicted next, is upstream's manager and policy to the key. Where a chunk lies is the
engine's, which chooses among what is free: in a full pool, the chunks that were
evicted for the store. A chunk in host memory is never moved.
"""

from collections.abc import Collection
from dataclasses import dataclass

from typing_extensions import override

from vllm.tagma import KVAllocator
from vllm.v1.kv_offload.base import OffloadKey, PrepareStoreOutput, ReqContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus


@dataclass
class LastStored:
    """The key that a request stored last."""

    key: OffloadKey


class TagmaCPUOffloadingManager(CPUOffloadingManager):
    """Upstream's manager, but for where its chunks lie."""

    def __init__(self, num_chunks: int, **settings):
        super().__init__(num_chunks, **settings)
        self._allocator = self._new_allocator()
        # What the chunks that are being allocated are to follow.
        self._previous: OffloadKey | None = None

    def _new_allocator(self) -> KVAllocator:
        return KVAllocator(max(self._num_chunks, 1), max_ranges=0)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        last = req_context.get_state(LastStored)
        self._previous = last and last.key
        for key in keys:
            if self._policy.get(key) is None:
                break
            self._previous = key
        output = super().prepare_store(keys, req_context)
        if output is not None and output.keys_to_store:
            req_context.set_state(LastStored(output.keys_to_store[-1]))
        return output

    # The number of chunks that are taken is upstream's `_num_allocated_chunks`; its
    # list of free ones stays empty.

    @override
    def _allocate_chunks(self, keys: list[OffloadKey]) -> list[ChunkStatus]:
        ranges = self._allocator.new_ranges()
        previous = self._previous and self._policy.get(self._previous)
        if previous:
            self._allocator.acquire(ranges, [previous.chunk_id])
        num_held = len(ranges)
        self._allocator.extend(ranges, len(keys))
        chunk_ids = ranges.block_ids(num_held)
        # From here on each chunk is held by itself.
        self._allocator.retain_blocks(chunk_ids)
        self._allocator.release(ranges)
        self._num_allocated_chunks += len(keys)
        return [ChunkStatus(chunk_id) for chunk_id in chunk_ids]

    @override
    def _free_chunk(self, chunk: ChunkStatus) -> None:
        self._allocator.release_blocks([chunk.chunk_id])
        self._num_allocated_chunks -= 1

    @override
    def reset_cache(self) -> None:
        super().reset_cache()
        self._allocator = self._new_allocator()
