# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Steps of Model Runner V2 that touch blocks of the KV cache and run no model."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.platforms import current_platform
from vllm.v1.block_moves import BlockMover
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu.ec_connector import NO_OP_EC_CONNECTOR
from vllm.v1.worker.gpu.kv_connector import (
    NO_OP_KV_CONNECTOR,
    ActiveKVConnector,
    KVConnector,
)
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.utils import KVBlockZeroer

DEVICE = torch.device(current_platform.device_type)
NUM_BLOCKS = 8
NUM_LAYERS = 2


class RecordingConnector(KVConnectorBase_V1):
    """A connector that reads and writes blocks where a test says so."""

    def __init__(self):
        config = SimpleNamespace(
            kv_transfer_config=KVTransferConfig(
                kv_connector="RecordingConnector", kv_role="kv_both"
            )
        )
        super().__init__(config, KVConnectorRole.WORKER, None)
        self.flushed: list[KVConnectorMetadata] = []

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self.flushed.append(kv_connector_metadata)
        self.flush()

    def start_load_kv(self, forward_context, **kwargs) -> None:
        self.load()

    def flush(self) -> None:
        """Finish what still reads blocks that the step may overwrite."""

    def load(self) -> None:
        """Post the transfers that write blocks."""

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        pass

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()


def active(connector: KVConnectorBase_V1, monkeypatch) -> ActiveKVConnector:
    """Return what a runner calls the connector through."""
    monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", connector)
    return ActiveKVConnector(VllmConfig(), {})


def filled_caches() -> list[torch.Tensor]:
    """Return the layers' caches, [NUM_BLOCKS, 4] each: block `b` is full of `b`."""
    blocks = torch.arange(NUM_BLOCKS, dtype=torch.float32, device=DEVICE)
    return [blocks[:, None].repeat(1, 4) for _ in range(NUM_LAYERS)]


def contents(caches: list[torch.Tensor]) -> list[int]:
    """Return the number that each block is full of, in all layers."""
    first, *others = (cache.tolist() for cache in caches)
    assert all(other == first for other in others)
    assert all(len(set(block)) == 1 for block in first)
    return [int(block[0]) for block in first]


def make_runner(
    caches: list[torch.Tensor], kv_connector: KVConnector = NO_OP_KV_CONNECTOR
) -> Any:
    """Return a runner without requests and without a model."""
    runner: Any = GPUModelRunner.__new__(GPUModelRunner)
    runner.kv_caches = caches
    runner.kv_cache_config = SimpleNamespace(num_blocks=NUM_BLOCKS)
    runner.kv_block_zeroer = _make_zeroer(caches)
    runner.kv_connector = kv_connector
    runner.block_mover = BlockMover()
    runner.ec_connector = NO_OP_EC_CONNECTOR
    runner.block_tables = SimpleNamespace(apply_staged_writes=lambda: None)
    runner.req_states = SimpleNamespace(
        num_computed_tokens_np=np.zeros(1, np.int32),
        prefill_len=SimpleNamespace(np=np.zeros(1, np.int32)),
        num_computed_prefill_tokens=np.zeros(1, np.int32),
    )
    for absent in (
        "aux_output_connector",
        "encoder_cache",
        "pooling_runner",
        "pp_handler",
        "sampler",
    ):
        setattr(runner, absent, None)
    return runner


def _make_zeroer(caches: list[torch.Tensor]) -> KVBlockZeroer:
    layers = {str(i): SimpleNamespace(kv_cache=c) for i, c in enumerate(caches)}
    group = SimpleNamespace(
        kv_cache_group_id=0,
        kv_cache_spec=FullAttentionSpec(
            block_size=1, num_kv_heads=1, head_size=2, dtype=torch.float32
        ),
        kernel_block_stride=None,
        layer_names=list(layers),
    )
    return KVBlockZeroer(DEVICE, [group], [1], layers, NUM_BLOCKS)


def block_step(
    to_zero: Sequence[int] = (), copies: list | None = None, **fields: Any
) -> SchedulerOutput:
    """Return a step of no tokens that zeroes blocks and copies some."""
    output = SchedulerOutput.make_empty()
    output.new_block_ids_to_zero = list(to_zero) or None
    output.kv_cache_block_copies = copies
    output.kv_connector_metadata = KVConnectorMetadata()
    for name, value in fields.items():
        setattr(output, name, value)
    return output
