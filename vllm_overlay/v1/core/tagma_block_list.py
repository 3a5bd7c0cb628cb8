# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Views over the blocks of `TagmaBlockPool`, made only when someone looks."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, overload

from vllm.v1.block_ranges import NULL_BLOCK_ID, BlockRanges
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    KVCacheBlock,
    make_block_hash_with_group_id,
)

if TYPE_CHECKING:
    from vllm.tagma import BlockIds, KVAllocator, KVRanges, PrefixIndex

# Fewer ids are sent to the workers faster as a list, and so are more in short ranges.
_FEW_BLOCKS = 16
_IDS_PER_RANGE = 2
# There is one KV cache group, so its id is no part of the keys of the index.
GROUP_ID = 0


def with_group_id(block_hash: bytes) -> BlockHashWithGroupId:
    """Return the block hash as upstream's code knows it."""
    return make_block_hash_with_group_id(BlockHash(block_hash), GROUP_ID)


class ViewedBlockPool(BlockPool):
    """A pool that keeps its blocks' states in the engine, where the views read them.

    Attributes:
        allocator: Knows which blocks are held and by how many requests.
        index: Knows which blocks are cached, and under which hash.

    """

    allocator: "KVAllocator"
    index: "PrefixIndex"


class TagmaBlock(KVCacheBlock):
    """A `KVCacheBlock` whose state lives in its pool, so it can be dropped."""

    __slots__ = ()

    pool: ViewedBlockPool

    def __init__(self, pool: ViewedBlockPool, block_id: int):
        self.pool = pool
        self.block_id = block_id
        self.is_null = block_id == NULL_BLOCK_ID

    @property
    def ref_cnt(self) -> int:
        # As upstream: the references of the null block are not maintained.
        return 0 if self.is_null else self.pool.allocator.ref_count(self.block_id)

    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None:
        raise NotImplementedError("touch() and free_blocks() count the references")

    @property
    def block_hash(self) -> BlockHashWithGroupId | None:
        block_hash = self.pool.index.hash_of(self.block_id)
        return None if block_hash is None else with_group_id(block_hash)

    @property
    def block_hash_num_tokens(self) -> int | None:
        position = self.pool.index.position_of(self.block_id)
        return None if position is None else (position + 1) * self.pool.hash_block_size

    @property
    def next_free_block(self) -> KVCacheBlock | None:
        """The block that is given away after this one, None if this one is held."""
        if self.ref_cnt or self.is_null:
            return None
        behind = self.pool.allocator.free_blocks(self.block_id, 1)
        if not behind:
            return self.pool.free_block_queue.fake_free_list_tail
        return TagmaBlock(self.pool, behind[0])

    # Where upstream keeps them, for who reads them there.
    _block_hash = block_hash
    _block_hash_num_tokens = block_hash_num_tokens

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


class ListEnd(KVCacheBlock):
    """What is in front of the free blocks, and what is behind them."""

    __slots__ = ()

    pool: ViewedBlockPool

    def __init__(self, pool: ViewedBlockPool):
        self.pool = pool
        self.block_id = -1

    @property
    def next_free_block(self) -> KVCacheBlock | None:
        queue = self.pool.free_block_queue
        if self is queue.fake_free_list_tail:
            return None
        return next(queue.iter_blocks_after(None), queue.fake_free_list_tail)


class IndexedIds(Protocol):
    """Block ids as a sequence without slices: `KVRanges` has none."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> int: ...


class TagmaBlockList(Sequence[KVCacheBlock]):
    """Blocks known by their ids, one `TagmaBlock` per element looked at."""

    __slots__ = ("_ids", "pool")

    def __init__(self, pool: ViewedBlockPool, ids: IndexedIds):
        self.pool = pool
        self._ids = ids

    def block_ids(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return the ids of the blocks `start` to `stop`, without views."""
        return [self._ids[i] for i in range(*slice(start, stop).indices(len(self)))]

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

    def __reversed__(self) -> "ReversedBlocks":
        return ReversedBlocks(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.block_ids()})"


class TagmaRangeList(TagmaBlockList):
    """Blocks held as ranges, or a view of such. A request's list grows with it."""

    __slots__ = ("ranges",)

    def __init__(self, pool: ViewedBlockPool, ranges: "KVRanges"):
        super().__init__(pool, ranges)
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

    def __init__(self, pool: ViewedBlockPool):
        super().__init__(pool, pool.allocator.new_ranges())
        self.num_slots = 0
        self.next_cached = 0 if pool.enable_caching else sys.maxsize


class ReversedBlocks(Iterator[KVCacheBlock]):
    """Blocks in the order in which they are given back, and whose they are."""

    def __init__(self, blocks: TagmaBlockList):
        self.blocks = blocks
        self._views = self._view_each()

    def _view_each(self) -> Iterator[KVCacheBlock]:
        for block_id in reversed(self.blocks.block_ids()):
            yield TagmaBlock(self.blocks.pool, block_id)

    def __next__(self) -> KVCacheBlock:
        return next(self._views)


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
