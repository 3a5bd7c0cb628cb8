# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What operators see of the "tagma" KV cache backend: metrics and a log line."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.metrics.loggers import (
    AggregateStatLoggerBase,
    LoggingStatLogger,
    PerEngineStatLoggerAdapter,
    PrometheusStatLogger,
)
from vllm.v1.metrics.stats import (
    IterationStats,
    MultiModalCacheStats,
    SchedulerStats,
)
from vllm.v1.metrics.tagma_stats import (
    COUNTERS,
    MOST_RANGES,
    share_of_one_range,
)
from vllm.v1.metrics.utils import create_metric_per_engine

logger = init_logger(__name__)


class TagmaStatLogger(AggregateStatLoggerBase):
    """Prometheus metrics and the log line, for all engines.

    Args:
        vllm_config: The configuration.
        prometheus: The logger whose kind of metrics and labels to use.
        writes_log: Whether to write the line as well.

    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        prometheus: PrometheusStatLogger,
        writes_log: bool,
    ):
        self.writes_log = writes_log
        self.last: dict[int, dict[str, Any]] = {}
        self.new: defaultdict[int, Counter[str]] = defaultdict(Counter)
        labelnames = ["model_name", "engine"]
        labelvalues = prometheus.per_engine_labelvalues
        self.largest_extent = create_metric_per_engine(
            prometheus._gauge_cls(
                name="vllm:kv_cache_tagma_largest_free_extent_blocks",
                documentation="Length of the largest free extent of the KV cache, "
                "in blocks.",
                multiprocess_mode="mostrecent",
                labelnames=labelnames,
            ),
            labelvalues,
        )
        self.one_range = create_metric_per_engine(
            prometheus._gauge_cls(
                name="vllm:kv_cache_tagma_one_range_requests_perc",
                documentation="Share of the requests with KV cache blocks that hold "
                "them in one range. 1 means all.",
                multiprocess_mode="mostrecent",
                labelnames=labelnames,
            ),
            labelvalues,
        )
        self.ranges = create_metric_per_engine(
            prometheus._histogram_cls(
                name="vllm:kv_cache_tagma_ranges_per_request",
                documentation="Histogram of the ranges that a running request holds, "
                "sampled once a second, rounded up to a power of two.",
                buckets=[2**n for n in range(9)],
                labelnames=labelnames,
            ),
            labelvalues,
        )
        self.copies_per_step = create_metric_per_engine(
            prometheus._histogram_cls(
                name="vllm:kv_cache_tagma_block_copies_per_step",
                documentation="Histogram of the KV cache blocks that a step's moves "
                "made the workers copy.",
                buckets=[0, *(4**n for n in range(8))],
                labelnames=labelnames,
            ),
            labelvalues,
        )
        self.counters = {
            name: create_metric_per_engine(
                prometheus._counter_cls(
                    name=f"vllm:kv_cache_tagma_{name}",
                    documentation=documentation,
                    labelnames=labelnames,
                ),
                labelvalues,
            )
            for name, documentation in COUNTERS.items()
        }

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        stats = scheduler_stats and scheduler_stats.kv_cache_backend_stats
        if not stats:
            return
        self.last[engine_idx] = stats
        self.largest_extent[engine_idx].set(stats["largest_extent"])
        self.one_range[engine_idx].set(share_of_one_range(stats))
        for name, counter in self.counters.items():
            counter[engine_idx].inc(stats[name])
            self.new[engine_idx][name] += stats[name]
        self.copies_per_step[engine_idx].observe(stats["block_copies"])
        for ranges, requests in stats.get("ranges_per_request", {}).items():
            for _ in range(requests):
                self.ranges[engine_idx].observe(MOST_RANGES[ranges])

    def log(self) -> None:
        """Write a line for each engine that took a step since the last call."""
        for engine_idx, new in sorted(self.new.items()):
            if not self.writes_log:
                break
            last = self.last[engine_idx]
            logger.info(
                "Engine %03d: KV cache ranges: %.1f%% of %d reqs in one range, "
                "Largest free extent: %d blocks, Spills: %d, Block copies: %d, "
                "Kept cached tokens: %d, Cap events: %d",
                engine_idx,
                share_of_one_range(last) * 100,
                last["requests"],
                last["largest_extent"],
                *(new[name] for name in COUNTERS),
            )
        self.new.clear()

    def log_engine_initialized(self) -> None:
        pass


def make_stat_logger(
    vllm_config: VllmConfig, stat_loggers: list[AggregateStatLoggerBase]
) -> TagmaStatLogger:
    """Return a logger that fits those that there are."""
    prometheus = next(
        stat_logger
        for stat_logger in stat_loggers
        if isinstance(stat_logger, PrometheusStatLogger)
    )
    writes_log = any(isinstance(one, LoggingStatLogger) for one in _each(stat_loggers))
    return TagmaStatLogger(vllm_config, prometheus, writes_log)


def _each(stat_loggers: list[AggregateStatLoggerBase]) -> Iterator[Any]:
    for stat_logger in stat_loggers:
        yield stat_logger
        if isinstance(stat_logger, PerEngineStatLoggerAdapter):
            yield from stat_logger.per_engine_stat_loggers.values()
