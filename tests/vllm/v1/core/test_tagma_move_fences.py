# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The manager tells the engine what must not be moved, or moved to, yet."""

import pytest

from tests.v1.core.scheduler_driver import (
    Arrival,
    Driver,
    SchedulerFactory,
    Setting,
    ZeroingConfig,
    write_model_config,
)
from tests.v1.core.test_prefix_caching import make_kv_cache_config
from tests.v1.core.test_tagma_kv_cache_manager import (
    BLOCK_SIZE,
    admit,
    make_manager,
    request_of,
)
from vllm.triton_utils import HAS_TRITON
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.tagma_kv_cache_manager import (
    TagmaConnectorKVCacheManager,
    TagmaKVCacheManager,
)

pytestmark = [
    pytest.mark.cpu_test,
    pytest.mark.skip_global_cleanup,
    pytest.mark.skipif(not HAS_TRITON, reason="needs a GPU or TRITON_INTERPRET=1"),
]


@pytest.mark.parametrize(("is_async", "in_flight"), [(False, 0), (True, 1)])
def test_a_step_counts_as_processed_when_its_output_has_been(
    tmp_path, is_async: bool, in_flight: int
):
    init_none_hash(sha256)
    setting = Setting(64, async_scheduling=is_async)
    factory = SchedulerFactory(write_model_config(tmp_path))
    driver = Driver(factory.make(setting, "tagma"), setting)
    allocator = driver.manager.block_pool.allocator
    driver.add("0", Arrival(0, 20, 40))
    for step in range(1, 6):
        driver.step()
        processed = step - in_flight
        with pytest.raises(ValueError, match=f"processed after step {processed},"):
            allocator.process_step(processed - 1)
    assert allocator.begin_step() == 6


def manager_before_a_move(cls: type[TagmaKVCacheManager]):
    """Make a full pool in which a request can grow if a cached block moves.

    Returns:
        The manager and the request in blocks 1 and 2. Block 3 would move to wherever
        the next block is evicted: it is in block 6.

    """
    config = ZeroingConfig(**vars(make_kv_cache_config(BLOCK_SIZE, 9)))
    manager = make_manager(num_blocks=9, cls=cls, kv_cache_config=config)
    allocator, index = manager.block_pool.allocator, manager.block_pool.index
    parts = [allocator.new_ranges() for _ in range(5)]
    for part, count in zip(parts, (2, 1, 2, 1, 2)):
        allocator.extend(part, count)
    request, behind, _, oldest, _ = parts
    for block_hash, part in (b"oldest", oldest), (b"behind", behind):
        index.insert(part, [block_hash], 0, 1)
        allocator.release(part)
    for _ in range(2):
        manager.new_step_starts()
        manager.take_events()
    return manager, request


@pytest.mark.parametrize(
    ("cls", "ranges"),
    [
        (TagmaKVCacheManager, [(1, 3)]),
        (TagmaConnectorKVCacheManager, [(1, 2), (6, 1)]),
    ],
)
def test_with_a_connector_nothing_moves_to_what_was_just_given_back(cls, ranges):
    manager, request = manager_before_a_move(cls)
    allocator = manager.block_pool.allocator
    for block in 6, 3:
        allocator.retain_blocks([block])
        allocator.release_blocks([block])
    allocator.extend(request, 1)
    assert request.ranges() == ranges


def test_what_moved_to_a_new_block_that_came_back_is_not_wiped():
    """As when a request is preempted in the step that gave it the block."""
    manager, request = manager_before_a_move(TagmaKVCacheManager)
    manager.new_step_starts()
    preempted = request_of("preempted", BLOCK_SIZE - 1)
    assert admit(manager, preempted) == 0
    assert manager.get_block_ids("preempted") == ([6],)
    manager.free(preempted)
    manager.block_pool.allocator.extend(request, 1)
    assert manager.take_kv_cache_block_copies()[0] == [(3, 6)]
    assert manager.take_new_block_ids() == []
