# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A step overwrites blocks only once the connector has stored what was in them.

Without a GPU the zeroing kernel runs in Triton's interpreter: set TRITON_INTERPRET=1.
"""

# ruff: noqa: E402
import pytest

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
    RecordingConnector,
    active,
    block_step,
    contents,
    filled_caches,
    make_runner,
)
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

# Nothing here outlives a test.
pytestmark = pytest.mark.skip_global_cleanup


class StoringConnector(RecordingConnector):
    """Stores blocks as the flush, at the latest, as OffloadingConnector does."""

    def __init__(self, caches):
        super().__init__()
        self.caches = caches
        self.stored: list[int] = []

    def flush(self) -> None:
        self.stored = contents(self.caches)


@pytest.fixture
def caches():
    return filled_caches()


@pytest.fixture
def connector(caches):
    return StoringConnector(caches)


@pytest.fixture
def runner(caches, connector, monkeypatch):
    return make_runner(caches, active(connector, monkeypatch))


def test_a_zeroed_block_has_been_stored(runner, connector):
    runner.execute_model(block_step(to_zero=[3]))
    assert connector.stored == [0, 1, 2, 3, 4, 5, 6, 7]


def test_the_target_of_a_copy_has_been_stored(runner, connector, caches):
    runner.execute_model(block_step(copies=[KVCacheBlockCopy(5, 2)]))
    assert connector.stored == [0, 1, 2, 3, 4, 5, 6, 7]
    assert contents(caches) == [0, 1, 5, 3, 4, 5, 6, 7]


def test_a_step_flushes_once_and_with_its_own_metadata(runner, connector):
    steps = [block_step(), block_step(to_zero=[1])]
    for step in steps:
        runner.execute_model(step)
    assert connector.flushed == [step.kv_connector_metadata for step in steps]


def test_a_disabled_connector_is_not_flushed(runner, connector):
    """Warm-up and dummy batches have no metadata."""
    runner.kv_connector.set_disabled(True)
    runner.execute_model(block_step(kv_connector_metadata=None))
    runner.kv_connector.set_disabled(False)
    assert connector.flushed == []
