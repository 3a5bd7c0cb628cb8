# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What the scheduler sends to the workers of a request's blocks."""

import pickle

import pytest

from vllm.tagma import KVAllocator
from vllm.v1.block_ranges import BlockRanges
from vllm.v1.core.tagma_block_list import TagmaRangeList
from vllm.v1.core.tagma_kv_cache_manager import TagmaKVCacheBlocks

pytestmark = pytest.mark.skip_global_cleanup


@pytest.fixture
def allocator() -> KVAllocator:
    allocator = KVAllocator(10000)
    allocator.allocate(1)  # the null block
    return allocator


def held(allocator: KVAllocator, num_blocks: int) -> TagmaRangeList:
    ranges = allocator.new_ranges()
    if num_blocks:
        allocator.extend(ranges, num_blocks)
    return TagmaRangeList(None, ranges)  # type: ignore[arg-type]


def test_many_blocks_are_sent_as_ranges(allocator: KVAllocator):
    """8,192 blocks of 128K tokens take a few bytes, and are the same ids."""
    blocks = held(allocator, 8192)
    (sent,) = TagmaKVCacheBlocks((blocks,)).get_block_ids()
    assert type(sent) is BlockRanges
    assert sent == blocks.block_ids()
    assert len(pickle.dumps(sent)) < 100


def test_few_blocks_are_sent_as_a_list(allocator: KVAllocator):
    (sent,) = TagmaKVCacheBlocks((held(allocator, 1),)).get_block_ids()
    assert type(sent) is list


@pytest.mark.parametrize(("length", "form"), [(1, list), (2, list), (3, BlockRanges)])
def test_short_ranges_are_sent_as_a_list(
    allocator: KVAllocator, length: int, form: type
):
    """They would take three times the bytes, and no less time."""
    blocks = held(allocator, 0)
    first, count = allocator.allocate(400)
    for start in range(first, first + count - length, length + 1):
        allocator.acquire(blocks.ranges, range(start, start + length))
    (sent,) = TagmaKVCacheBlocks((blocks,)).get_block_ids()
    assert type(sent) is form
    assert sent == blocks.block_ids()


def test_what_is_sent_does_not_grow_with_the_request(allocator: KVAllocator):
    """With one process the worker reads the very object, at a later time."""
    blocks = held(allocator, 100)
    (sent,) = TagmaKVCacheBlocks((blocks,)).get_block_ids()
    expected = list(sent)
    allocator.extend(blocks.ranges, 50)
    assert list(sent) == expected


def test_no_blocks_are_none_where_that_is_allowed(allocator: KVAllocator):
    blocks = TagmaKVCacheBlocks((held(allocator, 0),))
    assert blocks.get_block_ids() == ([],)
    assert blocks.get_block_ids(allow_none=True) is None
