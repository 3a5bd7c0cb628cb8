# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Upstream's scheduler without a model, on either KV cache backend."""

import copy
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vllm.config import KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

MAX_MODEL_LEN = 4096
STOP_TOKEN = 0


@dataclass(frozen=True)
class Setting:
    """The scheduler's configuration.

    Args:
        num_blocks: Blocks that requests can have; the null block comes on top.
        block_size: Tokens in a block.
        token_budget: Most tokens that a step schedules.
        max_num_seqs: Most requests that run at once.
        caching: Whether prefix caching is on.
        policy: "fcfs" or "priority".
        async_scheduling: Whether a step is scheduled before the last one's end.
        zeroing: Whether the workers are told which new blocks to wipe.

    """

    num_blocks: int
    block_size: int = 16
    token_budget: int = MAX_MODEL_LEN
    max_num_seqs: int = 64
    caching: bool = True
    policy: str = "fcfs"
    async_scheduling: bool = False
    zeroing: bool = False


@dataclass(frozen=True)
class Arrival:
    """A request: it continues a conversation, which every model agrees on.

    Args:
        conversation: Which one.
        num_prompt_tokens: How much of it is the prompt.
        max_tokens: How much more to generate.
        priority: Lower is scheduled first under the policy "priority".
        transfer: What tells a KV connector of blocks elsewhere.

    """

    conversation: int
    num_prompt_tokens: int
    max_tokens: int
    priority: int = 0
    transfer: dict[str, Any] | None = None


def token_at(conversation: int, position: int) -> int:
    """Return a conversation's token; each two share a prefix, some never stop."""
    if position < 8 * (conversation % 4 + 1):
        return position + 1
    mixed = (conversation * 7919 + position) * 2654435761 % 2**32 >> 8
    return STOP_TOKEN if mixed % 97 == 0 else 1000 * (conversation + 1) + mixed % 997


def write_model_config(folder: Path) -> str:
    """Write the configuration of a small Llama; no weights are needed here."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 128,
        "max_position_embeddings": MAX_MODEL_LEN,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


class ZeroingConfig(KVCacheConfig):
    """A model's cache whose new blocks are wiped, as those of some are."""

    needs_kv_cache_zeroing = True


class SchedulerFactory:
    """Makes schedulers quickly: the model's configuration is read once.

    Args:
        model: The folder of a model's configuration.

    """

    def __init__(self, model: str):
        self.config: VllmConfig = EngineArgs(
            model=model, skip_tokenizer_init=True, enforce_eager=True
        ).create_engine_config()
        self.grammars = StructuredOutputManager(self.config)

    def make(
        self,
        setting: Setting,
        backend: str,
        connector: KVTransferConfig | None = None,
    ) -> Scheduler:
        """Return a new scheduler."""
        config = copy.copy(self.config)
        config.kv_transfer_config = connector
        config.cache_config = copy.copy(config.cache_config)
        config.cache_config.kv_cache_backend = backend
        config.cache_config.block_size = setting.block_size
        config.cache_config.enable_prefix_caching = setting.caching
        config.cache_config.num_gpu_blocks = setting.num_blocks + 1
        config.scheduler_config = copy.copy(config.scheduler_config)
        config.scheduler_config.max_num_seqs = setting.max_num_seqs
        config.scheduler_config.max_num_batched_tokens = setting.token_budget
        config.scheduler_config.policy = setting.policy
        config.scheduler_config.async_scheduling = setting.async_scheduling
        config.scheduler_config.watermark = 0.0
        spec = FullAttentionSpec(
            block_size=setting.block_size,
            num_kv_heads=1,
            head_size=1,
            dtype=torch.float32,
        )
        num_blocks = setting.num_blocks + 1
        page = spec.page_size_bytes
        tensor = KVCacheTensor(num_blocks * page, ["layer"], num_blocks * page, page)
        cls = AsyncScheduler if setting.async_scheduling else Scheduler
        config_cls = ZeroingConfig if setting.zeroing else KVCacheConfig
        return cls(
            vllm_config=config,
            kv_cache_config=config_cls(
                num_blocks, [tensor], [KVCacheGroupSpec(["layer"], spec)]
            ),
            structured_output_manager=self.grammars,
            block_size=setting.block_size,
            log_stats=True,
        )


class Driver:
    """Runs a scheduler with a model that knows every conversation by heart.

    `on_stats` is called with the statistics of every step, `on_run` when the workers
    do one: what it returns is the answer of their KV connectors.

    Args:
        scheduler: A new scheduler.
        setting: How it was made.

    """

    def __init__(self, scheduler: Scheduler, setting: Setting):
        self.scheduler = scheduler
        self.conversations: dict[str, int] = {}
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.transfers: dict[str, dict[str, Any]] = {}
        self.on_stats: Callable[[SchedulerStats], None] = lambda stats: None
        self.on_run: Callable[[SchedulerOutput], KVConnectorOutput | None] = (
            lambda output: None
        )
        self._hasher = get_request_block_hasher(setting.block_size, sha256)
        self._depth = 2 if setting.async_scheduling else 1
        self._in_flight: deque[tuple[SchedulerOutput, set[str]]] = deque()

    @property
    def manager(self) -> KVCacheManager:
        """The KV cache manager."""
        return self.scheduler.kv_cache_manager

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request holds."""
        return self.manager.block_pool.get_num_free_blocks()

    def add(self, request_id: str, arrival: Arrival) -> None:
        """Let a request arrive."""
        request = Request(
            request_id=request_id,
            prompt_token_ids=[
                token_at(arrival.conversation, position)
                for position in range(arrival.num_prompt_tokens)
            ],
            sampling_params=SamplingParams(
                max_tokens=arrival.max_tokens,
                stop_token_ids=[STOP_TOKEN],
                extra_args={"kv_transfer_params": arrival.transfer},
            ),
            pooling_params=None,
            arrival_time=float(len(self.tokens)),
            priority=arrival.priority,
            block_hasher=self._hasher,
        )
        self.conversations[request_id] = arrival.conversation
        self.tokens[request_id] = []
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        """Abort a request, unless it has finished."""
        if request_id not in self.finished:
            self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
            self.finished[request_id] = "abort"

    def step(self) -> SchedulerOutput:
        """Schedule once, and answer the oldest step in flight if it is due."""
        output = self.scheduler.schedule()
        requests = self.scheduler.requests
        samples = {
            request_id
            for request_id in output.num_scheduled_tokens
            if not requests[request_id].is_prefill_chunk
        }
        self._in_flight.append((output, samples))
        if len(self._in_flight) >= self._depth or not samples:
            self._answer(*self._in_flight.popleft())
        return output

    def _answer(self, output: SchedulerOutput, samples: set[str]) -> None:
        request_ids = list(output.num_scheduled_tokens)
        answer = ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={name: index for index, name in enumerate(request_ids)},
            sampled_token_ids=[
                [self._next_token(name)] if name in samples else []
                for name in request_ids
            ],
            kv_connector_output=self.on_run(output),
        )
        for outputs in self.scheduler.update_from_output(output, answer).values():
            if outputs.scheduler_stats is not None:
                self.on_stats(outputs.scheduler_stats)
            for result in outputs.outputs:
                self.tokens[result.request_id] += result.new_token_ids
                if result.kv_transfer_params:
                    self.transfers[result.request_id] = result.kv_transfer_params
                if result.finish_reason is not None:
                    self.finished[result.request_id] = str(result.finish_reason)

    def _next_token(self, request_id: str) -> int:
        request = self.scheduler.requests.get(request_id)
        position = request.num_tokens if request else 0
        return token_at(self.conversations[request_id], position)


def summary(output: SchedulerOutput) -> dict[str, Any]:
    """Return all of a step that does not depend on which blocks were taken."""
    cached = output.scheduled_cached_reqs
    return {
        "new": [
            (new.req_id, new.num_computed_tokens, len(new.block_ids[0]))
            for new in output.scheduled_new_reqs
        ],
        "cached": [
            (request_id, num_computed, blocks and len(blocks[0]))
            for request_id, num_computed, blocks in zip(
                cached.req_ids, cached.num_computed_tokens, cached.new_block_ids
            )
        ],
        "resumed": cached.resumed_req_ids,
        "tokens": list(output.num_scheduled_tokens.items()),
        "preempted": output.preempted_req_ids,
        "finished": output.finished_req_ids,
        "common prefix": output.num_common_prefix_blocks,
    }
