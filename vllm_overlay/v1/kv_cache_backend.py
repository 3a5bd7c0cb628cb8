# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Choice of the KV cache backend.

Upstream files call only this module. It imports the tagma modules in the functions
that need them, so that neither they nor the compiled extension are imported while
the backend is "paged".
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

if TYPE_CHECKING:
    import torch

    from vllm.config import CacheConfig, VllmConfig
    from vllm.v1.block_moves import BlockMover
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_offload.config import OffloadingConfig
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
    from vllm.v1.metrics.loggers import AggregateStatLoggerBase
    from vllm.v1.worker.gpu.block_table import BlockTables
    from vllm.v1.worker.gpu.kv_connector import KVConnector

logger = init_logger(__name__)


def uses_tagma(cache_config: "CacheConfig | None") -> bool:
    """Whether the configuration selects the tagma backend."""
    return getattr(cache_config, "kv_cache_backend", "paged") == "tagma"


def require_v2_model_runner() -> bool:
    """Return True, or raise if tagma's Model Runner V2 cannot run on this host."""
    from vllm.v1 import tagma_refusals

    return tagma_refusals.require_v2_model_runner()


def verify_kv_cache_backend(vllm_config: "VllmConfig") -> None:
    """Refuse at start-up what the selected backend cannot serve.

    Raises:
        UnsupportedByTagmaError: The backend is tagma, and something is.

    """
    if not uses_tagma(vllm_config.cache_config):
        return
    from vllm.v1.tagma_refusals import verify_config

    verify_config(vllm_config)


def kv_cache_manager_cls(
    vllm_config: "VllmConfig", paged_cls: "type[KVCacheManager]"
) -> "Callable[..., KVCacheManager]":
    """Return the KV cache manager class of the selected backend, with its settings."""
    if not uses_tagma(vllm_config.cache_config):
        return paged_cls
    from vllm.v1.core.tagma_kv_cache_manager import (
        TagmaConnectorKVCacheManager,
        TagmaKVCacheManager,
    )
    from vllm.v1.tagma_connectors import reads_freed_blocks, reason_not_to_move_blocks

    connectors = vllm_config.kv_transfer_config
    move_bytes = vllm_config.cache_config.kv_cache_block_move_bytes
    if move_bytes and (reason := reason_not_to_move_blocks(connectors)):
        logger.warning("KV cache blocks are not moved, so ranges are many: %s.", reason)
        move_bytes = 0
    if connectors is None:
        return partial(TagmaKVCacheManager, move_bytes=move_bytes)
    return partial(
        TagmaConnectorKVCacheManager,
        move_bytes=move_bytes,
        reads_freed_blocks=reads_freed_blocks(connectors),
    )


def cpu_offloading_manager_cls(
    config: "OffloadingConfig", upstream_cls: "type[CPUOffloadingManager]"
) -> "type[CPUOffloadingManager]":
    """Return the class that manages the chunks of CPU offloading."""
    if config.kv_cache_backend != "tagma":
        return upstream_cls
    from vllm.v1.kv_offload.cpu.tagma_manager import TagmaCPUOffloadingManager

    return TagmaCPUOffloadingManager


def block_tables_cls(
    vllm_config: "VllmConfig", paged_cls: "type[BlockTables]"
) -> "type[BlockTables]":
    """Return Model Runner V2's block-table class of the selected backend."""
    if not uses_tagma(vllm_config.cache_config):
        return paged_cls
    from vllm.v1.worker.gpu.tagma_block_table import TagmaBlockTables

    return TagmaBlockTables


def make_block_mover(
    vllm_config: "VllmConfig",
    kv_caches: "list[torch.Tensor]",
    num_blocks: int,
    kv_connector: "KVConnector",
) -> "BlockMover":
    """Return what moves cached blocks on a worker for the selected backend."""
    if not uses_tagma(vllm_config.cache_config):
        from vllm.v1.block_moves import BlockMover

        return BlockMover()
    from vllm.v1.worker.gpu.tagma_block_moves import TagmaBlockMover

    return TagmaBlockMover(kv_caches, num_blocks, kv_connector)


def take_kv_cache_stats(
    cache_config: "CacheConfig", manager: "KVCacheManager"
) -> dict[str, Any] | None:
    """Return the selected backend's own stats of a step, as plain data."""
    if not uses_tagma(cache_config):
        return None
    from vllm.v1.core.tagma_kv_cache_manager import TagmaKVCacheManager

    assert isinstance(manager, TagmaKVCacheManager)
    return manager.stats_source.take()


def kv_cache_stat_loggers(
    vllm_config: "VllmConfig", stat_loggers: "list[AggregateStatLoggerBase]"
) -> "list[AggregateStatLoggerBase]":
    """Return the loggers of the selected backend's own stats.

    Args:
        vllm_config: The configuration.
        stat_loggers: The loggers that there are, Prometheus' among them.

    """
    if not uses_tagma(vllm_config.cache_config):
        return []
    from vllm.v1.metrics.tagma_logger import make_stat_logger

    return [make_stat_logger(vllm_config, stat_loggers)]
