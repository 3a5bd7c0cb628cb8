# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""`--kv-cache-backend`: how it is chosen, and what it refuses at start-up."""

import importlib.util
import json
import pickle
import runpy
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.v1.core.scheduler_driver import write_model_config
from vllm.config import CacheConfig, KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.triton_utils import HAS_TRITON
from vllm.triton_utils import importing as triton_importing
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1 import tagma_refusals
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_backend import (
    block_tables_cls,
    kv_cache_manager_cls,
    verify_kv_cache_backend,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.tagma_connectors import reads_freed_blocks
from vllm.v1.tagma_refusals import (
    REFUSALS,
    UnsupportedByTagmaError,
    verify_kv_cache_groups,
)

pytestmark = [
    pytest.mark.cpu_test,
    pytest.mark.skip_global_cleanup,
    pytest.mark.skipif(not HAS_TRITON, reason="needs a GPU or TRITON_INTERPRET=1"),
]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model_config(tmp_path)


def make_config(model: str, **kwargs) -> VllmConfig:
    args = {"kv_cache_backend": "tagma", "enforce_eager": True} | kwargs
    return EngineArgs(
        model=model, skip_tokenizer_init=True, **args
    ).create_engine_config()


def parse(*argv: str) -> EngineArgs:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    return EngineArgs.from_cli_args(parser.parse_args(argv))


def test_paged_is_the_default() -> None:
    assert CacheConfig().kv_cache_backend == "paged"
    assert parse().kv_cache_backend == "paged"


def test_flag_selects_the_backend() -> None:
    assert parse("--kv-cache-backend", "tagma").kv_cache_backend == "tagma"


def test_bad_value_names_both_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--kv-cache-backend", "ranges")
    error = capsys.readouterr().err
    assert "invalid choice: 'ranges'" in error
    assert "paged" in error and "tagma" in error


def test_compiled_graphs_do_not_depend_on_the_backend() -> None:
    hashes = {
        CacheConfig(kv_cache_backend=backend).compute_hash()
        for backend in ("paged", "tagma")
    }
    assert len(hashes) == 1


def test_backend_is_a_label_of_the_cache_metrics() -> None:
    assert CacheConfig(kv_cache_backend="tagma").metrics_info()["kv_cache_backend"] == (
        "tagma"
    )


def test_tagma_selects_model_runner_v2(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    assert make_config(model).use_v2_model_runner


def test_model_runner_v1_is_refused(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with pytest.raises(ValueError, match="VLLM_USE_V2_MODEL_RUNNER=0.*Remove the var"):
        make_config(model)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    make_config(model)


def test_host_without_triton_is_told_about_the_interpreter(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tagma_refusals, "HAS_TRITON", False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        make_config(model)


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes"])
def test_interpreter_serves_however_triton_lets_one_ask_for_it(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert runpy.run_path(triton_importing.__file__)["HAS_TRITON"]


def test_each_backend_gets_its_own_classes(model: str) -> None:
    tagma = make_config(model)
    paged = make_config(model, kv_cache_backend="paged")
    assert kv_cache_manager_cls(paged, KVCacheManager) is KVCacheManager
    assert kv_cache_manager_cls(tagma, KVCacheManager) is not KVCacheManager
    assert issubclass(kv_cache_manager_cls(tagma, KVCacheManager).func, KVCacheManager)
    assert block_tables_cls(paged, object) is object
    assert block_tables_cls(tagma, object) is not object


LAZY = {
    "kv_connector": "SimpleCPUOffloadConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"lazy_offload": True},
}


@dataclass(frozen=True)
class Refused:
    """Arguments that tagma refuses, and what they become by following its advice.

    It may also advise paged, which is followed with the refused arguments.
    """

    args: dict
    followed: dict | None = None


# By the begin of the option's name in the message.
REFUSED = {
    "context parallelism": Refused(
        {"decode_context_parallel_size": 2, "tensor_parallel_size": 2},
        {"decode_context_parallel_size": 1, "tensor_parallel_size": 2},
    ),
    "--speculative-config": Refused(
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, {}
    ),
    "--prefix-match-unit": Refused({"prefix_match_unit": 16}, {}),
    # Upstream's own checks refuse these for Model Runner V2.
    "pipeline parallelism with external_launcher": Refused(
        {
            "distributed_executor_backend": "external_launcher",
            "pipeline_parallel_size": 2,
        }
    ),
    "dual batch overlap": Refused(
        {"ubatch_size": 2, "all2all_backend": "deepep_low_latency"}
    ),
}
REFUSED_MODELS = {
    "hybrid and Mamba models": (
        "JambaForCausalLM",
        {"model_type": "jamba"},
    ),
    "attention-free models": (
        "MambaForCausalLM",
        {"model_type": "mamba", "state_size": 16},
    ),
    "encoder-decoder models": (
        "WhisperForConditionalGeneration",
        {"model_type": "whisper", "vocab_size": 51865},
    ),
}
# A field of the configuration, since this host lacks what the option needs.
REFUSED_FIELDS = {
    "--enable-elastic-ep": ("parallel_config.enable_elastic_ep", True, False),
    "HiSparse": ("attention_config.hisparse_config", object(), None),
    "--enable-sleep-mode": ("model_config.enable_sleep_mode", True, False),
}


def test_every_refusal_is_asked_for_here() -> None:
    asked_for = (*REFUSED, *REFUSED_MODELS, *REFUSED_FIELDS)
    for refusal in REFUSALS:
        assert refusal.option.startswith(asked_for), refusal.option


@pytest.fixture
def external_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that torchrun sets for the first of two processes."""
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("external_launcher")
@pytest.mark.parametrize("option", REFUSED)
def test_refused_option_is_named_with_advice_that_helps(
    model: str, option: str
) -> None:
    refused = REFUSED[option]
    with pytest.raises(ValueError) as caught:
        make_config(model, **refused.args)
    message = str(caught.value)
    assert f"--kv-cache-backend tagma does not support {option}" in message
    assert "se --kv-cache-backend paged" in message
    make_config(model, **refused.args, kv_cache_backend="paged")
    if refused.followed is not None:
        make_config(model, **refused.followed)


def test_requests_at_once_are_not_limited(model: str) -> None:
    """However many share a block, the engine counts them."""
    seqs = 100_000
    config = make_config(model, max_num_seqs=seqs, max_num_batched_tokens=seqs)
    assert config.scheduler_config.max_num_seqs == seqs


def test_advice_for_a_runner_that_is_asked_for_helps(
    model: str, monkeypatch: pytest.MonkeyPatch, external_launcher: None
) -> None:
    """Upstream refuses paged, too, for as long as the variable is set."""
    args = REFUSED["pipeline parallelism with external_launcher"].args
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(ValueError, match="remove the variable VLLM_USE_V2_MODEL_RUN"):
        make_config(model, **args)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    make_config(model, **args, kv_cache_backend="paged")


@pytest.mark.parametrize("option", REFUSED_MODELS)
def test_refused_model_is_named_and_paged_takes_it(tmp_path: Path, option: str) -> None:
    architecture, config = REFUSED_MODELS[option]
    config = {"architectures": [architecture]} | config
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"{option}.*Use --kv-cache-backend paged"):
        make_config(str(tmp_path))
    make_config(str(tmp_path), kv_cache_backend="paged")


@pytest.mark.parametrize("option", REFUSED_FIELDS)
def test_option_that_this_host_lacks_is_refused_too(
    model: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, refused, followed = REFUSED_FIELDS[option]
    config = make_config(model)
    part, field = path.split(".")
    monkeypatch.setattr(getattr(config, part), field, refused)
    with pytest.raises(UnsupportedByTagmaError, match=option) as caught:
        verify_kv_cache_backend(config)
    assert "se --kv-cache-backend paged" in str(caught.value)
    monkeypatch.setattr(getattr(config, part), field, followed)
    verify_kv_cache_backend(config)


def test_a_server_stops_at_a_refused_option_and_says_why(model: str) -> None:
    """The real command, from its arguments to its last words."""
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
    options = ["--kv-cache-backend", "tagma", "--prefix-match-unit", "16"]
    server = subprocess.run(
        [*command, "--skip-tokenizer-init", *options],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert server.returncode != 0
    message = "--kv-cache-backend tagma does not support --prefix-match-unit: "
    assert message in server.stdout + server.stderr


LMCACHE = LAZY | {
    "kv_connector": "LMCacheMPConnector",
    "kv_connector_extra_config": {"lmcache.mp.lazy_offload": True},
}


def several(*connectors: dict) -> dict:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": list(connectors)},
    }


@pytest.mark.parametrize(
    "kv_transfer_config",
    [
        {
            "kv_connector": "ExampleConnector",
            "kv_connector_extra_config": {"shared_storage_path": "x"},
        },
        LAZY,
        {"kv_connector": "NixlConnector"},
        several(LAZY),
    ],
)
def test_connectors_are_served(model: str, kv_transfer_config: dict) -> None:
    config = make_config(
        model, kv_transfer_config=kv_transfer_config | {"kv_role": "kv_both"}
    )
    verify_kv_cache_backend(config)
    cls = kv_cache_manager_cls(config, KVCacheManager)
    assert cls.func.__name__ == "TagmaConnectorKVCacheManager"


NIXL = {"kv_connector": "NixlConnector"}
OFFLOADING = {"kv_connector": "OffloadingConnector"}


@pytest.mark.parametrize(
    "connector, reads",
    [
        (NIXL, False),
        ({"kv_connector": "MooncakeConnector"}, False),
        (OFFLOADING, True),
        (NIXL | {"kv_connector_module_path": "of.somebody"}, True),
        (several(NIXL), False),
        (several(NIXL, OFFLOADING), True),
    ],
    ids=["NIXL", "Mooncake", "offloading", "unknown", "NIXL in Multi", "both"],
)
def test_a_connector_may_read_freed_blocks_unless_it_is_known_to_hold_them(
    connector: dict, reads: bool
) -> None:
    config = KVTransferConfig(**connector | {"kv_role": "kv_both"})
    assert reads_freed_blocks(config) is reads


MORIIO = {"kv_connector": "MoRIIOConnector", "kv_role": "kv_both"}
READING = MORIIO | {"kv_connector_extra_config": {"read_mode": "true"}}
EAGER = LMCACHE | {"kv_connector_extra_config": {"lmcache.mp.lazy_offload": False}}


@pytest.mark.parametrize(
    "kv_transfer_config, moves",
    [
        (MORIIO, False),
        (READING, True),
        (several(MORIIO), False),
        (LMCACHE, False),
        (EAGER, True),
        (several(several(LMCACHE)), False),
        (LAZY, True),
    ],
    ids=[
        "writing",
        "reading",
        "writing, in Multi",
        "LMCache, lazily",
        "LMCache",
        "LMCache, lazily, in Multi in Multi",
        "SimpleCPU, lazily",
    ],
)
def test_no_block_moves_that_others_look_for_or_write_to_where_it_was(
    model: str, kv_transfer_config: dict, moves: bool
) -> None:
    config = make_config(model)
    config.kv_transfer_config = KVTransferConfig(**kv_transfer_config)
    manager = kv_cache_manager_cls(config, KVCacheManager)
    assert (manager.keywords["move_bytes"] > 0) == moves
    config.cache_config.kv_cache_backend = "paged"
    assert kv_cache_manager_cls(config, KVCacheManager) is KVCacheManager


def test_paged_accepts_what_tagma_refuses(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusals must not reach users of the default backend."""
    config = make_config(model, kv_cache_backend="paged")
    everything = tuple(replace(refusal, applies=lambda _: True) for refusal in REFUSALS)
    monkeypatch.setattr(tagma_refusals, "REFUSALS", everything)
    verify_kv_cache_backend(config)


def test_refusal_survives_the_way_between_processes() -> None:
    error = UnsupportedByTagmaError("option", "reason", "Do this")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "option: reason. Do this." in str(error)


def test_rebound_factory_of_a_platform_still_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Out-of-tree platforms replace the name in the manager's module."""
    made = []
    monkeypatch.setattr(
        "vllm.v1.core.kv_cache_manager.get_kv_cache_coordinator",
        lambda **kwargs: made.append(kwargs),
    )
    KVCacheManager.make_coordinator(object(), use_eagle=False)
    assert made == [{"use_eagle": False}]


def _kind(spec: KVCacheSpec) -> str:
    return type(spec).__name__.removesuffix("Spec")


def groups_of(config: VllmConfig, layers: dict[str, KVCacheSpec]) -> list:
    """Upstream's own groups. 0.33.0 has the function in a module of its own."""
    modules = ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")
    name = next(filter(importlib.util.find_spec, modules))
    return importlib.import_module(name).get_kv_cache_groups(config, layers)


PAGE = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
FULL = FullAttentionSpec(**PAGE)
WINDOW = SlidingWindowSpec(**PAGE, sliding_window=32)
WIDE = SlidingWindowSpec(**PAGE, sliding_window=64)
CHUNK = ChunkedLocalAttentionSpec(**PAGE, attention_chunk_size=32)
NARROW = SlidingWindowSpec(**PAGE | {"head_size": 4}, sliding_window=32)
COMPRESSED = MLAAttentionSpec(**PAGE, tokens_per_state=4)


@pytest.mark.parametrize(
    "specs, helps",
    [
        ([], False),
        ([FULL, MLAAttentionSpec(**PAGE)], False),
        ([WINDOW], False),
        ([WINDOW, CHUNK], False),
        ([COMPRESSED], False),
        ([COMPRESSED, WINDOW], False),
        ([FULL, NARROW], False),
        ([FULL, WINDOW], True),
        ([FULL, CHUNK], True),
        ([FULL, WINDOW, WINDOW], True),
        ([FULL, WINDOW, CHUNK], False),
        ([FULL, WINDOW, WIDE], False),
    ],
    ids=lambda value: None if isinstance(value, bool) else "+".join(map(_kind, value)),
)
def test_only_one_full_attention_group_is_served(
    model: str, specs: list, helps: bool
) -> None:
    """The option that stores local attention as full is advised where it helps."""
    groups = [KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)]
    with pytest.raises(UnsupportedByTagmaError, match="exactly one full-att") as caught:
        verify_kv_cache_groups(KVCacheConfig(8, [], groups))
    message = str(caught.value)
    assert "se --kv-cache-backend paged" in message
    assert ("--disable-hybrid-kv-cache-manager" in message) == helps

    config = make_config(model, disable_hybrid_kv_cache_manager=True)
    layers = {f"layer{i}": spec for i, spec in enumerate(specs)}
    try:
        verify_kv_cache_groups(KVCacheConfig(8, [], groups_of(config, layers)))
    except ValueError:
        assert not helps
    else:
        assert helps


@pytest.mark.parametrize("cls", [FullAttentionSpec, MLAAttentionSpec])
def test_one_full_attention_group_is_served(cls: type) -> None:
    groups = [KVCacheGroupSpec(["layer0"], cls(**PAGE))]
    verify_kv_cache_groups(KVCacheConfig(8, [], groups))
