# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Requests that a connector keeps: as many as there are blocks for, as with paged.

`max_num_seqs` bounds neither these nor the requests that wait for remote blocks, and
all of them may share the block that a system prompt fills.
"""

from pathlib import Path

import pytest

from tests.v1.core.scheduler_driver import (
    Arrival,
    Driver,
    SchedulerFactory,
    Setting,
    write_model_config,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

pytestmark = [pytest.mark.cpu_test, pytest.mark.skip_global_cleanup]

# More than 15 bits count.
NUM_REQUESTS = 33_000
PROMPT = Arrival(conversation=0, num_prompt_tokens=17, max_tokens=1)


def test_requests_without_number_are_kept_with_a_block_in_common(
    tmp_path: Path,
) -> None:
    init_none_hash(sha256)
    # Each has a block of its own, behind the one that they share.
    setting = Setting(NUM_REQUESTS + 1, token_budget=16_384, max_num_seqs=1024)
    factory = SchedulerFactory(write_model_config(tmp_path))
    scheduler = factory.make(setting, "tagma")
    kept = []

    def keep_blocks(request):
        """As a connector answers whose other side has not read the blocks yet."""
        kept.append(request)
        return True, None

    scheduler._connector_finished = keep_blocks
    driver = Driver(scheduler, setting)
    names = [str(i) for i in range(NUM_REQUESTS)]
    for start in range(0, NUM_REQUESTS, setting.max_num_seqs):
        for name in names[start : start + setting.max_num_seqs]:
            driver.add(name, PROMPT)
        while scheduler.waiting or scheduler.running:
            driver.step()
    assert len(kept) == len(driver.finished) == NUM_REQUESTS
    allocator = driver.manager.block_pool.allocator
    shared = driver.manager.get_block_ids(kept[0].request_id)[0][0]
    assert allocator.ref_count(shared) == NUM_REQUESTS
    assert driver.num_free_blocks == 0

    # There is no block left: the next request waits, until the kept ones go.
    driver.add("next", PROMPT)
    driver.step()
    assert len(scheduler.waiting) == 1 and not scheduler.running
    for request in kept[:-1]:
        scheduler._free_blocks(request)
    driver.step()
    assert "next" in driver.finished
    allocator.check_invariants()
