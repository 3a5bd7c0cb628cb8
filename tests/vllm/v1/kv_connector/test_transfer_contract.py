# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A block that a transfer holds is not moved, evicted or given away, on either side.

Upstream's schedulers and the scheduler's half of the real connectors. LMCache's needs
its package even for that half; `make demo-lmcache` runs it.
"""

from pathlib import Path

import pytest

from tests.v1.core.scheduler_driver import SchedulerFactory, write_model_config
from tests.v1.kv_connector.transfer_pair import TransferPair
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

pytestmark = pytest.mark.skip_global_cleanup

CONNECTORS = ("NixlConnector", "MooncakeConnector")
NUM_REQUESTS = 150


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> SchedulerFactory:
    init_none_hash(sha256)
    folder: Path = tmp_path_factory.mktemp("model")
    return SchedulerFactory(write_model_config(folder))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("backend", ["paged", "tagma"])
def test_what_is_read_and_written_is_right_through_all_that_goes_wrong(
    factory, backend: str, connector: str, policy: str, seed: int
):
    pair = TransferPair(factory, backend, connector, policy, seed)
    pair.run(NUM_REQUESTS)

    for side in (pair.prefill, pair.decode):
        side.memory.check_all()
        assert side.driver.num_free_blocks == pair.setting.num_blocks
    happened = ("read", "failed", "expired", "aborted", "preempted")
    assert all(pair.seen[what] for what in happened), pair.seen
    moves = pair.prefill.memory.num_moves + pair.decode.memory.num_moves
    assert bool(moves) == (backend == "tagma")
    ends = set(pair.decode.driver.finished.values())
    assert ("error" in ends) == (policy == "fail")


@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize("connector", CONNECTORS)
def test_hits_tokens_and_ends_are_pageds(factory, connector: str, policy: str):
    paged, tagma = (
        TransferPair(factory, backend, connector, policy, seed=5)
        for backend in ("paged", "tagma")
    )
    for pair in (paged, tagma):
        pair.run(NUM_REQUESTS)
    assert tagma.hits == paged.hits
    assert tagma.seen == paged.seen
    assert tagma.decode.driver.tokens == paged.decode.driver.tokens
    assert tagma.decode.driver.finished == paged.decode.driver.finished
