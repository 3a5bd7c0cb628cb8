# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""`--kv-cache-backend`: how it is chosen, and what it refuses at start-up."""

import json
import pickle
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.v1.core.scheduler_driver import write_model_config
from vllm.config import CacheConfig, VllmConfig
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
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
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
    with pytest.raises(ValueError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
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
    assert issubclass(kv_cache_manager_cls(tagma, KVCacheManager), KVCacheManager)
    assert block_tables_cls(paged, object) is object
    assert block_tables_cls(tagma, object) is not object


REFUSED_ARGUMENTS = {
    "context parallelism": {
        "decode_context_parallel_size": 2,
        "tensor_parallel_size": 2,
    },
    "lazy CPU offloading": {
        "kv_transfer_config": {
            "kv_connector": "SimpleCPUOffloadConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"lazy_offload": True},
        }
    },
    "--speculative-config": {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2}
    },
    "--prefix-match-unit": {"prefix_match_unit": 16},
}


@pytest.mark.parametrize("option", REFUSED_ARGUMENTS)
def test_refused_option_is_named_with_an_alternative(model: str, option: str) -> None:
    with pytest.raises(ValueError) as caught:
        make_config(model, **REFUSED_ARGUMENTS[option])
    message = str(caught.value)
    assert f"--kv-cache-backend tagma does not support {option}" in message
    assert "--kv-cache-backend paged" in message


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


def test_lazy_offloading_within_several_connectors_is_refused(model: str) -> None:
    lazy = {
        "kv_connector": "SimpleCPUOffloadConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lazy_offload": True},
    }

    def several(connector: dict) -> dict:
        return {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": [connector]},
        }

    for config in (several(lazy), several(several(lazy))):
        with pytest.raises(ValueError, match="lazy CPU offloading"):
            make_config(model, kv_transfer_config=config)


@pytest.mark.parametrize(
    "kv_transfer_config",
    [
        {
            "kv_connector": "ExampleConnector",
            "kv_connector_extra_config": {"shared_storage_path": "x"},
        },
        {"kv_connector": "SimpleCPUOffloadConnector"},
        {"kv_connector": "NixlConnector"},
    ],
)
def test_connectors_are_served(model: str, kv_transfer_config: dict) -> None:
    config = make_config(
        model, kv_transfer_config=kv_transfer_config | {"kv_role": "kv_both"}
    )
    verify_kv_cache_backend(config)
    cls = kv_cache_manager_cls(config, KVCacheManager)
    assert cls.__name__ == "TagmaConnectorKVCacheManager"


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [
        ("JambaForCausalLM", {"model_type": "jamba"}, "hybrid and Mamba models"),
        (
            "MambaForCausalLM",
            {"model_type": "mamba", "state_size": 16},
            "attention-free models",
        ),
        (
            "WhisperForConditionalGeneration",
            {"model_type": "whisper", "vocab_size": 51865},
            "encoder-decoder models",
        ),
    ],
)
def test_refused_model_is_named(
    tmp_path: Path, architecture: str, config: dict, message: str
) -> None:
    config = {"architectures": [architecture]} | config
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        make_config(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("parallel_config.enable_elastic_ep", True, "--enable-elastic-ep"),
        ("scheduler_config.max_num_seqs", 32_001, "--max-num-seqs above 32,000"),
        ("attention_config.hisparse_config", object(), "HiSparse"),
        ("model_config.enable_sleep_mode", True, "--enable-sleep-mode"),
    ],
)
def test_option_that_this_host_lacks_is_refused_too(
    model: str, path: str, value: object, message: str, monkeypatch
) -> None:
    config = make_config(model)
    part, field = path.split(".")
    monkeypatch.setattr(getattr(config, part), field, value)
    with pytest.raises(UnsupportedByTagmaError, match=message):
        verify_kv_cache_backend(config)


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


FULL = FullAttentionSpec(
    block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32
)


@pytest.mark.parametrize(
    "specs",
    [
        [],
        [FULL, FULL],
        [
            SlidingWindowSpec(
                block_size=16,
                num_kv_heads=1,
                head_size=8,
                dtype=torch.float32,
                sliding_window=32,
            )
        ],
        [
            MLAAttentionSpec(
                block_size=16,
                num_kv_heads=1,
                head_size=8,
                dtype=torch.float32,
                tokens_per_state=4,
            )
        ],
    ],
    ids=["none", "two groups", "sliding window", "compressed MLA"],
)
def test_only_one_full_attention_group_is_served(specs: list) -> None:
    groups = [KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)]
    with pytest.raises(UnsupportedByTagmaError, match="exactly one full-attention"):
        verify_kv_cache_groups(KVCacheConfig(8, [], groups))


@pytest.mark.parametrize("cls", [FullAttentionSpec, MLAAttentionSpec])
def test_one_full_attention_group_is_served(cls: type) -> None:
    spec = cls(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    verify_kv_cache_groups(KVCacheConfig(8, [], [KVCacheGroupSpec(["layer0"], spec)]))
