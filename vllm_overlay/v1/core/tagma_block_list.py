# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Views over the blocks of `TagmaBlockPool`, made only when someone looks."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, overload

from vllm.v1.block_ranges import NULL_BLOCK_ID, BlockRanges
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    KVCacheBlock,
    make_block_hash_with_group_id,
)

if TYPE_CHECKING:
    from vllm.tagma import BlockIds, KVRanges
    from vllm.v1.core.tagma_block_pool import TagmaBlockPool

# Fewer ids are sent to the workers faster as a list, and so are more in short ranges.
_FEW_BLOCKS = 16
_IDS_PER_RANGE = 2
# There is one KV cache group, so its id is no part of the keys of the index.
GROUP_ID = 0


def with_group_id(block_hash: bytes) -> BlockHashWithGroupId:
    """Return the block hash as upstream's code knows it."""
    return make_block_hash_with_group_id(BlockHash(block_hash), GROUP_ID)


class TagmaBlock(KVCacheBlock):
    """A `KVCacheBlock` whose state lives in its pool, so it can be dropped."""

    __slots__ = ()

    pool: "TagmaBlockPool"

    def __init__(self, pool: "TagmaBlockPool", block_id: int):
        self.pool = pool
        self.block_id = block_id
        self.is_null = block_id == NULL_BLOCK_ID

    @property
    def ref_cnt(self) -> int:  # type: ignore[override]
        # As upstream: the references of the null block are not maintained.
        return 0 if self.is_null else self.pool.allocator.ref_count(self.block_id)

    @property
    def block_hash(self) -> BlockHashWithGroupId | None:
        block_hash = self.pool.index.hash_of(self.block_id)
        return None if block_hash is None else with_group_id(block_hash)

    @property
    def block_hash_num_tokens(self) -> int | None:
        position = self.pool.index.position_of(self.block_id)
        return None if position is None else (position + 1) * self.pool.hash_block_size

    # Where upstream keeps them, for who reads them there.
    _block_hash = block_hash  # type: ignore[assignment]
    _block_hash_num_tokens = block_hash_num_tokens  # type: ignore[assignment]

    def set_block_hash(
        self, block_hash: BlockHashWithGroupId, num_tokens: int | None = None
    ) -> None:
        raise NotImplementedError("TagmaBlockPool.cache_full_blocks() sets the hashes")

    def reset_hash(self) -> None:
        self.pool.index.evict((self.block_id,))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TagmaBlock):
            return NotImplemented
        return self.pool is other.pool and self.block_id == other.block_id

    def __hash__(self) -> int:
        return hash(self.block_id)

    def __repr__(self) -> str:
        return (
            f"TagmaBlock(block_id={self.block_id}, ref_cnt={self.ref_cnt}, "
            f"block_hash={self.block_hash!r})"
        )


class TagmaBlockList(Sequence[KVCacheBlock]):
    """Blocks known by their ids, one `TagmaBlock` per element looked at."""

    __slots__ = ("_ids", "pool")

    def __init__(self, pool: "TagmaBlockPool", ids: Sequence[int]):
        self.pool = pool
        self._ids = ids

    def block_ids(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return the ids of the blocks `start` to `stop`, without views."""
        return list(self._ids[start:stop])

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> KVCacheBlock: ...

    @overload
    def __getitem__(self, index: slice) -> "TagmaBlockList": ...

    def __getitem__(self, index):
        if not isinstance(index, slice):
            return TagmaBlock(self.pool, self._ids[index])
        start, stop, step = index.indices(len(self))
        ids = self.block_ids(start, stop) if step == 1 else self.block_ids()[index]
        return TagmaBlockList(self.pool, ids)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return (TagmaBlock(self.pool, block_id) for block_id in self.block_ids())

    def __reversed__(self) -> "TagmaBlockList":  # type: ignore[override]
        return self[::-1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.block_ids()})"


class TagmaRangeList(TagmaBlockList):
    """Blocks held as ranges, or a view of such. A request's list grows with it."""

    __slots__ = ("ranges",)

    def __init__(self, pool: "TagmaBlockPool", ranges: "KVRanges"):
        # Read by index and length only: ranges have block_ids() for slices.
        self.pool = pool
        self._ids = ranges  # type: ignore[assignment]
        self.ranges = ranges

    def block_ids(self, start: int = 0, stop: int | None = None) -> list[int]:
        return self.ranges.block_ids(start, stop)

    def __getitem__(self, index):
        if isinstance(index, slice) and index.step in (None, 1):
            return TagmaRangeList(self.pool, self.ranges.part(index.start, index.stop))
        return super().__getitem__(index)


class TagmaRequestBlocks(TagmaRangeList):
    """The blocks of one request, with what the next step asks first.

    Attributes:
        num_slots: Number of tokens that the blocks hold.
        next_cached: Number of computed tokens that makes another block full and
            so cached.

    """

    __slots__ = ("next_cached", "num_slots")

    def __init__(self, pool: "TagmaBlockPool"):
        self.pool = pool
        self._ids = self.ranges = pool.allocator.new_ranges()
        self.num_slots = 0
        self.next_cached = 0 if pool.enable_caching else sys.maxsize

    def __reversed__(self) -> "ReversedRequestBlocks":  # type: ignore[override]
        return ReversedRequestBlocks(self)


class ReversedRequestBlocks(Iterable[KVCacheBlock]):
    """The blocks of a request in the order in which they are given back."""

    def __init__(self, blocks: TagmaRequestBlocks):
        self.request_blocks = blocks

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self.request_blocks[::-1])


def block_ids_of(blocks: Iterable[KVCacheBlock]) -> list[int]:
    """Return the ids of `blocks`, without views where they are not needed."""
    if isinstance(blocks, TagmaBlockList):
        return blocks.block_ids()
    return [block.block_id for block in blocks]


def sendable_ids_of(blocks: Sequence[KVCacheBlock]) -> Sequence[int]:
    """Return the ids of `blocks` in the form that costs least to send."""
    if (
        isinstance(blocks, TagmaRangeList)
        and len(blocks) > _FEW_BLOCKS
        and len(blocks) > _IDS_PER_RANGE * blocks.ranges.num_ranges
    ):
        return BlockRanges(blocks.ranges.ranges())
    return block_ids_of(blocks)


def ids_or_ranges_of(blocks: Iterable[KVCacheBlock]) -> "BlockIds":
    """Return `blocks` in the form that the allocator reads fastest."""
    return blocks.ranges if isinstance(blocks, TagmaRangeList) else block_ids_of(blocks)
