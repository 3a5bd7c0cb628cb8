# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""`BlockRanges` behaves as the list of block ids that it stands for."""

import pickle

import numpy as np
import pytest

from vllm.v1.block_ranges import BlockRanges

pytestmark = pytest.mark.skip_global_cleanup

IDS = [7, 8, 9, 3, 0, 0, 0, 4, 5, 2**31 - 1]


def test_reads_as_the_list():
    blocks = BlockRanges.of(IDS)
    assert len(blocks) == len(IDS)
    assert [blocks[i] for i in range(-len(IDS), len(IDS))] == IDS + IDS
    assert list(blocks) == IDS and blocks == IDS
    assert list(reversed(blocks)) == IDS[::-1]
    assert blocks[2:-1:3] == IDS[2:-1:3]
    assert 4 in blocks and 6 not in blocks
    assert blocks != IDS[:-1] and blocks != [*IDS[:-1], 1]
    assert not BlockRanges(()) and BlockRanges.of([]) == []
    for index in (len(IDS), -len(IDS) - 1):
        with pytest.raises(IndexError):
            blocks[index]


def test_ranges_are_the_fewest():
    expected = ((7, 3), (3, 1), (0, 3), (4, 2), (2**31 - 1, 1))
    assert BlockRanges.of(IDS).ranges == expected
    assert BlockRanges.of(BlockRanges(expected)).ranges == expected


@pytest.mark.parametrize("num_ids", [3, 199, 200, 201, 2000])
def test_many_ids_are_compressed_as_few_are(num_ids: int):
    """Two ways to compress, one result: ids are next to each other by chance."""
    rng = np.random.default_rng(num_ids)
    for _ in range(50):
        ids = rng.integers(0, rng.choice([2, 4, 1000]), num_ids).tolist()
        ids[num_ids // 2 :] = range(50, 50 + num_ids - num_ids // 2)
        blocks = BlockRanges.of(ids)
        assert list(blocks) == ids
        for (start, count), (following, _) in zip(blocks.ranges, blocks.ranges[1:]):
            assert following != (start and start + count)


def test_pickles_as_ranges():
    """A request of 128K tokens is sent in a few bytes."""
    blocks = BlockRanges([(1000, 8000), (1, 192)])
    sent = pickle.dumps(blocks, pickle.HIGHEST_PROTOCOL)
    assert len(sent) < 100
    received = pickle.loads(sent)
    assert type(received) is BlockRanges
    assert received == list(blocks)


@pytest.mark.parametrize("ids", [[-1], [2**31], [5] * 300 + [-1], [5] * 300 + [2**31]])
def test_what_is_no_block_id_is_refused(ids: list[int]):
    with pytest.raises(ValueError, match="block"):
        BlockRanges.of(ids)


@pytest.mark.parametrize("block_range", [(5, 0), (5, -1), (-1, 2), (2**31 - 1, 2)])
def test_what_is_no_range_is_refused(block_range: tuple[int, int]):
    with pytest.raises(ValueError, match="not a range of blocks"):
        BlockRanges([(1, 1), block_range])
