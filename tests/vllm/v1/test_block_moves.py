# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""`BlockMoves` is a list of copies that remembers which of them are moves."""

import pickle

import pytest

from vllm.v1.block_moves import BlockMoves
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

pytestmark = pytest.mark.skip_global_cleanup


def test_reads_as_a_list_of_copies():
    copies = BlockMoves([(3, 1), (2, 3)], copies_on_write=[(5, 6)])
    assert copies == [(3, 1), (2, 3), (5, 6)]
    assert all(type(copy) is KVCacheBlockCopy for copy in copies)
    assert (copies.num_moves, copies.moves) == (2, [(3, 1), (2, 3)])
    assert copies.copies_on_write == [(5, 6)]
    assert not BlockMoves([])


def test_pickles_in_eight_bytes_a_copy():
    """A worker gets the step's moves, thousands at worst, through shared memory."""
    copies = BlockMoves(((i + 1, i) for i in range(3000)), [(2**31 - 1, 9)])
    sent = pickle.dumps(copies, pickle.HIGHEST_PROTOCOL)
    assert len(sent) < 8 * 3001 + 200
    received = pickle.loads(sent)
    assert type(received) is BlockMoves
    assert received == copies and received.num_moves == 3000
    assert all(type(copy) is KVCacheBlockCopy for copy in received)


def test_no_copies_survive_pickling():
    received = pickle.loads(pickle.dumps(BlockMoves([])))
    assert received == [] and received.num_moves == 0
