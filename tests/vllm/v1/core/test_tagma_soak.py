# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A short soak; `python -m tests.v1.core.tagma_soak 200000` is the long one."""

import pytest

from tests.v1.core.scheduler_driver import SchedulerFactory, write_model_config
from tests.v1.core.tagma_soak import SETTING, Check, Soak
from vllm.triton_utils import HAS_TRITON
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

pytestmark = [
    pytest.mark.cpu_test,
    pytest.mark.skip_global_cleanup,
    pytest.mark.skipif(not HAS_TRITON, reason="needs a GPU or TRITON_INTERPRET=1"),
]


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> SchedulerFactory:
    init_none_hash(sha256)
    return SchedulerFactory(write_model_config(tmp_path_factory.mktemp("model")))


@pytest.fixture
def soak(factory: SchedulerFactory) -> Soak:
    return Soak(factory, reset_every=1000)


def test_a_full_pool_keeps_its_invariants_and_leaks_nothing(soak: Soak) -> None:
    checks: list[Check] = []
    verdict = soak.run(steps=2500, check_every=100, report=checks.append)
    assert verdict.problems == ()
    assert len(checks) == 25
    # It did what it is there for.
    assert checks[-1].preemptions > 0
    assert checks[-1].evicted_blocks > 0
    assert checks[-1].spills > 0
    assert checks[-1].block_copies > 1000
    assert checks[-1].hit_tokens > 0


def test_a_leak_is_a_problem(soak: Soak) -> None:
    pool = soak.driver.manager.block_pool
    held = pool.allocator.new_ranges()
    pool.allocator.extend(held, 3)
    assert list(soak.problems(growth=0.0, usage=1.0)) == ["3 blocks leaked"]
    assert list(soak.problems(growth=0.02, usage=0.5))[:2] == [
        "resident memory grew by 2.0%",
        "only 50.0% of the pool was in use",
    ]
    pool.allocator.release(held)


def test_a_block_with_a_wrong_content_is_found(soak: Soak) -> None:
    for step in range(100):
        soak.step(step)
    soak.compare_contents()
    index = soak.driver.manager.block_pool.index
    block = next(b for b in range(SETTING.num_blocks, 0, -1) if index.hash_of(b))
    soak.memory.slots[block, -1] += 1
    with pytest.raises(AssertionError, match="wrong block|not what was cached"):
        soak.compare_contents()


def test_moves_that_are_not_made_are_found(soak: Soak) -> None:
    soak.memory.move = lambda moves: None
    with pytest.raises(AssertionError, match="reads a wrong block"):
        for step in range(1000):
            soak.step(step)
