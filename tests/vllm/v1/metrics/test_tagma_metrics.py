# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What operators see of the "tagma" backend, from the allocator to the exporter."""

import copy
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.v1.core.scheduler_driver import (
    Arrival,
    Driver,
    SchedulerFactory,
    Setting,
    write_model_config,
)
from vllm.config import VllmConfig
from vllm.tagma import KVAllocator
from vllm.triton_utils import HAS_TRITON
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.metrics.tagma_logger import TagmaStatLogger
from vllm.v1.metrics.tagma_stats import COUNTERS, MOST_RANGES, TagmaStatsSource
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

pytestmark = [
    pytest.mark.cpu_test,
    pytest.mark.skip_global_cleanup,
    pytest.mark.skipif(not HAS_TRITON, reason="needs a GPU or TRITON_INTERPRET=1"),
]

SETTING = Setting(num_blocks=24, block_size=4, token_budget=64, caching=True)


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> SchedulerFactory:
    init_none_hash(sha256)
    return SchedulerFactory(write_model_config(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def _no_metrics_left() -> Iterator[None]:
    yield
    unregister_vllm_metrics()


def config_of(factory: SchedulerFactory, backend: str) -> VllmConfig:
    config = copy.copy(factory.config)
    config.cache_config = copy.copy(config.cache_config)
    config.cache_config.kv_cache_backend = backend
    return config


def serve(factory: SchedulerFactory, backend: str) -> tuple[Driver, list]:
    """Run requests that compete for blocks; return the statistics of all steps."""
    driver = Driver(factory.make(SETTING, backend), SETTING)
    stats: list[SchedulerStats] = []
    driver.on_stats = stats.append
    for number in range(12):
        driver.add(str(number), Arrival(number, 20, 30))
    while driver.scheduler.has_requests():
        driver.step()
    return driver, stats


def totals_of(driver: Driver) -> dict[str, Any]:
    """Return the allocator's statistics, and the tokens of blocks that it kept."""
    stats = driver.manager.block_pool.allocator.stats()
    kept_tokens = stats["kept_blocks"] * SETTING.block_size
    return stats | {"kept_cached_tokens": kept_tokens}


def as_received(stats: SchedulerStats) -> SchedulerStats:
    """Return statistics as the front end gets them from the engine's process."""
    frames = MsgpackEncoder().encode(EngineCoreOutputs(scheduler_stats=stats))
    received = MsgpackDecoder(EngineCoreOutputs).decode(frames).scheduler_stats
    assert received is not None
    return received


def value(name: str) -> float | None:
    """Return the exported value of a metric of engine 0."""
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            if sample.name == f"vllm:kv_cache_tagma_{name}":
                return sample.value
    return None


def test_exported_values_are_the_allocators(factory: SchedulerFactory) -> None:
    manager = StatLoggerManager(config_of(factory, "tagma"))
    driver, stats = serve(factory, "tagma")
    for step in stats:
        manager.record(as_received(step), None)
    totals = totals_of(driver)
    for name in COUNTERS:
        assert value(f"{name}_total") == totals[name]
    assert totals["spills"] > 0 and totals["block_copies"] > 0
    assert totals["kept_cached_tokens"] > 0
    assert value("block_copies_per_step_count") == len(stats)
    assert value("block_copies_per_step_sum") == totals["block_copies"]
    assert value("largest_free_extent_blocks") == totals["largest_extent"]
    sampled = sum(
        sum(step.kv_cache_backend_stats.get("ranges_per_request", {}).values())
        for step in stats
    )
    assert value("ranges_per_request_count") == sampled > 0


def test_a_request_that_passes_the_workers_limit_is_counted_once() -> None:
    pool = KVAllocator(600, max_ranges=0)
    source = TagmaStatsSource(pool, block_size=16)
    pool.extend(pool.new_ranges(), 600)
    request = pool.new_ranges()
    counts = []
    for blocks in (range(0, 512, 2), [513], [515]):
        pool.acquire(request, list(blocks))
        counts.append(source.take()["cap_events"])
    assert counts == [0, 1, 0]


def test_share_of_requests_with_one_range_is_that_of_the_step(
    factory: SchedulerFactory,
) -> None:
    manager = StatLoggerManager(config_of(factory, "tagma"))
    _, stats = serve(factory, "tagma")
    seen = set()
    for step in stats:
        manager.record(as_received(step), None)
        payload = step.kv_cache_backend_stats
        if payload["requests"]:
            share = payload["one_range"] / payload["requests"]
            assert value("one_range_requests_perc") == share
            seen.add(share)
    assert len(seen) > 1


def test_counts_leave_as_increments(factory: SchedulerFactory) -> None:
    """Else several front ends, which share the steps, would count twice."""
    driver, stats = serve(factory, "tagma")
    sums: Counter[str] = Counter()
    for step in stats:
        sums.update({name: step.kv_cache_backend_stats[name] for name in COUNTERS})
    totals = totals_of(driver)
    assert dict(sums) == {name: totals[name] for name in COUNTERS}


def test_histogram_has_a_bucket_for_each_class_of_the_allocator() -> None:
    classes = KVAllocator(1).stats()["ranges_per_request"]
    assert list(classes) == list(MOST_RANGES)


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """The lines that the backend's logger writes, whatever VLLM_LOGGING_LEVEL is."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    keep = Keep()
    names = ("vllm.v1.metrics.loggers", "vllm.v1.metrics.tagma_logger")
    for name in names:
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger(names[1]).addHandler(keep)
    yield lines
    logging.getLogger(names[1]).removeHandler(keep)
    for name in names:
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_log_line_tells_of_the_steps_since_the_last(
    factory: SchedulerFactory, log_lines: list[str]
) -> None:
    manager = StatLoggerManager(config_of(factory, "tagma"))
    driver, stats = serve(factory, "tagma")
    for step in stats:
        manager.record(as_received(step), None)
    manager.log()
    spills = driver.manager.block_pool.allocator.stats()["spills"]
    (line,) = log_lines
    assert line.startswith("Engine 000: KV cache ranges: ")
    assert f"Spills: {spills}, " in line
    manager.log()  # no step since
    assert len(log_lines) == 1


def test_nothing_changes_with_the_paged_backend(factory: SchedulerFactory) -> None:
    manager = StatLoggerManager(config_of(factory, "paged"))
    _, stats = serve(factory, "paged")
    for step in stats:
        assert step.kv_cache_backend_stats is None
        manager.record(as_received(step), None)
    assert not any(isinstance(one, TagmaStatLogger) for one in manager.stat_loggers)
    exported = {
        sample.name for metric in REGISTRY.collect() for sample in metric.samples
    }
    assert "vllm:kv_cache_usage_perc" in exported
    assert not any("tagma" in name for name in exported)
