# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What `--kv-cache-backend tagma` cannot serve, and what to use instead.

All of it is refused when the engine starts: most when the configuration is made, the
model's KV cache groups as soon as they are known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import vllm.envs as envs
from vllm.config import VllmConfig
from vllm.triton_utils import HAS_TRITON
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)


class UnsupportedByTagmaError(ValueError):
    """An option, model or host that `--kv-cache-backend tagma` cannot serve."""

    def __init__(self, option: str, reason: str, instead: str):
        super().__init__(option, reason, instead)

    def __str__(self) -> str:
        option, reason, instead = self.args
        return (
            f"--kv-cache-backend tagma does not support {option}: {reason}. {instead}."
        )


@dataclass(frozen=True)
class Refusal:
    """One refused option: when it applies, why, and what to do about it."""

    applies: Callable[[VllmConfig], bool]
    option: str
    reason: str
    instead: str


_USE_PAGED = "Use --kv-cache-backend paged"


REFUSALS = (
    Refusal(
        lambda c: (
            c.parallel_config.decode_context_parallel_size > 1
            or c.parallel_config.prefill_context_parallel_size > 1
        ),
        "context parallelism (--decode-context-parallel-size, "
        "--prefill-context-parallel-size)",
        "its ranks interleave the tokens of a block",
        f"Set both sizes to 1. {_USE_PAGED} otherwise",
    ),
    Refusal(
        lambda c: c.parallel_config.enable_elastic_ep,
        "--enable-elastic-ep",
        "it resizes the engine at run time, which is not tested with it",
        _USE_PAGED,
    ),
    Refusal(
        lambda c: c.model_config is not None and c.model_config.enable_sleep_mode,
        "--enable-sleep-mode",
        "waking up with its block tables is not tested",
        f"Drop the option. {_USE_PAGED} otherwise",
    ),
    Refusal(
        lambda c: c.speculative_config is not None,
        "--speculative-config",
        "a drafter's captured graphs could not change to the materialized block "
        "table, which a request with too many ranges needs",
        f"Drop the option. {_USE_PAGED} otherwise",
    ),
    Refusal(
        lambda c: c.attention_config.hisparse_config is not None,
        "HiSparse",
        "it keeps several pools of blocks",
        _USE_PAGED,
    ),
    Refusal(
        lambda c: c.cache_config.prefix_match_unit is not None,
        "--prefix-match-unit",
        "prefix hits end at whole blocks",
        f"Drop the option. {_USE_PAGED} otherwise",
    ),
    Refusal(
        lambda c: c.model_config is not None and c.model_config.is_hybrid,
        "hybrid and Mamba models",
        "their state blocks form a second KV cache group",
        _USE_PAGED,
    ),
    Refusal(
        lambda c: c.model_config is not None and c.model_config.is_encoder_decoder,
        "encoder-decoder models",
        "cross attention forms a second KV cache group",
        _USE_PAGED,
    ),
    Refusal(
        lambda c: c.model_config is not None and c.model_config.is_attention_free,
        "attention-free models",
        "they have no KV cache to place",
        _USE_PAGED,
    ),
)


def require_v2_model_runner() -> bool:
    """Return True, or raise if Model Runner V2 cannot run on this host."""
    if envs.VLLM_USE_V2_MODEL_RUNNER is False:
        raise UnsupportedByTagmaError(
            "VLLM_USE_V2_MODEL_RUNNER=0",
            "its write path belongs to Model Runner V2",
            "Remove the variable",
        )
    if not HAS_TRITON:
        raise UnsupportedByTagmaError(
            "a host without a usable Triton",
            "its write path is a Triton kernel",
            "On a CPU-only host install triton and set TRITON_INTERPRET=1",
        )
    return True


def verify_config(vllm_config: VllmConfig) -> None:
    """Refuse a configuration that asks for what the backend cannot serve.

    Raises:
        UnsupportedByTagmaError: The first refusal of `REFUSALS` that applies.

    """
    require_v2_model_runner()
    for refusal in REFUSALS:
        if refusal.applies(vllm_config):
            raise UnsupportedByTagmaError(
                refusal.option, refusal.reason, refusal.instead
            )
    _verify_v2_features(vllm_config)


def _verify_v2_features(vllm_config: VllmConfig) -> None:
    """Refuse what upstream's Model Runner V2 lacks, before its own check does.

    That one knows neither who chose this runner nor a way out.
    """
    lacking = vllm_config._get_v2_model_runner_unsupported_features()
    if not lacking:
        return
    instead = f"{_USE_PAGED}, which falls back to Model Runner V1"
    if envs.VLLM_USE_V2_MODEL_RUNNER:
        instead += ", and remove the variable VLLM_USE_V2_MODEL_RUNNER"
    raise UnsupportedByTagmaError(
        ", ".join(lacking), "its Model Runner V2 does not serve it yet", instead
    )


def verify_kv_cache_groups(kv_cache_config: KVCacheConfig) -> None:
    """Refuse a model whose KV cache is not one full-attention group.

    The layers' specs are known only after the model has been loaded.

    Raises:
        UnsupportedByTagmaError: There is not exactly one group, or it is neither of
            plain full attention nor of dense MLA. Subclasses of the specs change
            their meaning, so only the exact types are accepted.

    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    served = (FullAttentionSpec, MLAAttentionSpec)
    if (
        len(specs) != 1
        or type(specs[0]) not in served
        or specs[0].tokens_per_state != 1
    ):
        kinds = ", ".join(type(spec).__name__ for spec in specs) or "none"
        instead = _USE_PAGED
        if _become_one_group(specs):
            instead = f"Set --disable-hybrid-kv-cache-manager. {_USE_PAGED} otherwise"
        raise UnsupportedByTagmaError(
            f"this model's KV cache groups ({kinds})",
            "it places the blocks of exactly one full-attention group, with a state "
            "for each token",
            instead,
        )


def _become_one_group(specs: Sequence[KVCacheSpec]) -> bool:
    """Whether the groups are one without the hybrid KV cache manager.

    Local attention is then stored as full attention is, if there is any, and one
    group has one page and at most one kind and size of local attention.
    """
    full = [spec for spec in specs if type(spec) is FullAttentionSpec]
    windows = [spec for spec in specs if type(spec) is SlidingWindowSpec]
    chunks = [spec for spec in specs if type(spec) is ChunkedLocalAttentionSpec]
    sizes = {("window", spec.sliding_window) for spec in windows}
    sizes |= {("chunk", spec.attention_chunk_size) for spec in chunks}
    layers: list[AttentionSpec] = [*full, *windows, *chunks]
    pages = {(spec.num_kv_heads, spec.head_size, spec.dtype) for spec in layers}
    return bool(full) and len(layers) == len(specs) and len(sizes) == len(pages) == 1
