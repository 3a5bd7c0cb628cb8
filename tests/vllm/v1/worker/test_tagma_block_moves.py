# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A step moves cached blocks where nothing reads or writes them meanwhile.

Without a GPU the zeroing kernel runs in Triton's interpreter: set TRITON_INTERPRET=1.
"""

# ruff: noqa: E402
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON

if not HAS_TRITON:
    pytest.skip(
        "no Triton: use a GPU, or set TRITON_INTERPRET=1", allow_module_level=True
    )
if current_platform.is_cpu():
    # Puts CPU buffers in the place of UVA ones, before those are imported.
    import vllm.v1.worker.cpu.shm  # noqa: F401

from tests.v1.worker.block_step import (
    NUM_BLOCKS,
    RecordingConnector,
    active,
    block_step,
    contents,
    filled_caches,
    make_runner,
)
from vllm.v1.block_moves import BlockMover, BlockMoves
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.kv_cache_backend import make_block_mover
from vllm.v1.worker.gpu.kv_connector import NO_OP_KV_CONNECTOR
from vllm.v1.worker.gpu.tagma_block_moves import TagmaBlockMover

# Nothing here outlives a test.
pytestmark = pytest.mark.skip_global_cleanup


@pytest.fixture
def caches():
    return filled_caches()


def make_tagma_runner(caches, kv_connector=NO_OP_KV_CONNECTOR):
    runner = make_runner(caches, kv_connector)
    runner.block_mover = TagmaBlockMover(caches, NUM_BLOCKS, kv_connector)
    return runner


def test_a_moved_block_is_read_before_its_place_is_zeroed(caches):
    """A block that is moved away may be a new one in the same step."""
    step = block_step(to_zero=[5], copies=BlockMoves([(5, 2)]))
    make_tagma_runner(caches).execute_model(step)
    assert contents(caches) == [0, 1, 5, 3, 4, 0, 6, 7]


def test_a_step_of_no_tokens_moves_blocks(caches):
    step = block_step(copies=BlockMoves([(5, 2)]))
    assert step.total_num_scheduled_tokens == 0
    make_tagma_runner(caches).execute_model(step)
    assert contents(caches) == [0, 1, 5, 3, 4, 5, 6, 7]


def test_a_chain_of_moves_ends_in_a_new_block(caches):
    copies = BlockMoves([(3, 2), (4, 3), (5, 4)])
    make_tagma_runner(caches).execute_model(block_step([5], copies))
    assert contents(caches) == [0, 1, 3, 4, 5, 0, 6, 7]


def test_blocks_change_places(caches):
    make_tagma_runner(caches).execute_model(
        block_step(copies=BlockMoves([(1, 3), (6, 7), (7, 6)]))
    )
    assert contents(caches) == [0, 1, 2, 1, 4, 5, 7, 6]


def test_a_copy_on_write_comes_after_zeroing_and_moves(caches):
    """Its target is zeroed as a new block, and may be where a block moved away."""
    copies = BlockMoves([(5, 2)], copies_on_write=[(6, 5)])
    make_tagma_runner(caches).execute_model(block_step([5], copies))
    assert contents(caches) == [0, 1, 5, 3, 4, 6, 6, 7]


def test_copies_on_write_alone_are_left_to_upstream(caches):
    step = block_step(to_zero=[2], copies=[KVCacheBlockCopy(5, 2)])
    make_tagma_runner(caches).execute_model(step)
    assert contents(caches) == [0, 1, 5, 3, 4, 5, 6, 7]


def test_the_flush_comes_before_the_moves(caches, monkeypatch):
    """A store that a connector has put off reads a place that a block moves to."""
    connector = RecordingConnector()
    stored = []
    connector.flush = lambda: stored.append(contents(caches))
    runner = make_tagma_runner(caches, active(connector, monkeypatch))
    runner.execute_model(block_step([5], BlockMoves([(5, 2)])))
    assert stored == [list(range(NUM_BLOCKS))]


def test_paged_moves_nothing():
    paged = SimpleNamespace(cache_config=SimpleNamespace(kv_cache_backend="paged"))
    mover = make_block_mover(paged, [], NUM_BLOCKS, NO_OP_KV_CONNECTOR)
    assert type(mover) is BlockMover
    copies = [KVCacheBlockCopy(5, 2)]
    assert mover.move(copies) is copies and mover.move(None) is None


def test_tagma_moves_what_the_runner_has(caches):
    tagma = SimpleNamespace(cache_config=SimpleNamespace(kv_cache_backend="tagma"))
    mover = make_block_mover(tagma, caches, NUM_BLOCKS, NO_OP_KV_CONNECTOR)
    assert mover.move(BlockMoves([(1, 2)], [(3, 4)])) == [(3, 4)]
    assert contents(caches) == [0, 1, 1, 3, 4, 5, 6, 7]


class LateDevice:
    """Runs what is queued only when somebody waits for it."""

    def __init__(self):
        self._queue: list[Callable[[], None]] = []
        self._num_done = 0
        self.num_waits = 0

    def queue(self, work: Callable[[], None]) -> None:
        self._queue.append(work)

    def finish(self) -> None:
        self._run_until(len(self._queue))

    def record(self) -> torch.Event:
        """Return an event behind what is queued by now."""
        end = len(self._queue)

        def synchronize() -> None:
            self.num_waits += 1
            self._run_until(end)

        return SimpleNamespace(synchronize=synchronize)

    def _run_until(self, end: int) -> None:
        for work in self._queue[self._num_done : end]:
            work()
        self._num_done = max(self._num_done, end)


class LateMover(TagmaBlockMover):
    """Moves blocks on a device that is late."""

    def __init__(self, device: LateDevice, *arguments):
        super().__init__(*arguments)
        self._device = device

    def _copy(self, moves) -> None:
        copy = super()._copy
        self._device.queue(lambda: copy(moves))

    def _recorded_event(self):
        return self._device.record()


class LoadingConnector(RecordingConnector):
    """Writes 9 into blocks at once, past the device's queue, as a remote read may."""

    def __init__(self, caches, blocks):
        super().__init__()
        self.caches, self.blocks = caches, blocks

    def load(self) -> None:
        for cache in self.caches:
            cache[self.blocks] = 9


@pytest.fixture
def device():
    return LateDevice()


@pytest.fixture
def late_runner(caches, device, monkeypatch):
    connector = active(LoadingConnector(caches, [5]), monkeypatch)
    runner = make_runner(caches, connector)
    runner.block_mover = LateMover(device, caches, NUM_BLOCKS, connector)
    return runner


@pytest.mark.parametrize("has_sync_kv_loads", [True, False])
def test_a_load_waits_until_its_blocks_have_been_moved_away(
    caches, device, late_runner, has_sync_kv_loads: bool
):
    """Whether the load starts before the forward or after it."""
    copies = BlockMoves([(5, 2)])
    late_runner.execute_model(
        block_step(copies=copies, has_sync_kv_loads=has_sync_kv_loads)
    )
    device.finish()
    assert contents(caches) == [0, 1, 5, 3, 4, 9, 6, 7]


def test_a_load_after_a_dummy_batch_waits_for_the_moves_before(
    caches, device, late_runner
):
    """What disables a connector for a while leaves the fence where it is."""
    late_runner.kv_connector.set_disabled(True)
    late_runner.execute_model(block_step(copies=BlockMoves([(5, 2)])))
    late_runner.kv_connector.set_disabled(False)
    late_runner.execute_model(block_step())
    device.finish()
    assert contents(caches) == [0, 1, 5, 3, 4, 9, 6, 7]


def test_only_a_step_with_moves_waits(device, late_runner):
    late_runner.execute_model(block_step(copies=[KVCacheBlockCopy(6, 7)]))
    assert device.num_waits == 0
    for copies in (BlockMoves([(5, 2)]), None):
        late_runner.execute_model(block_step(copies=copies))
        assert device.num_waits == 1
