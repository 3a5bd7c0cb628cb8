# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What Model Runner V2's sampler states cannot hold is rejected at the front end."""

from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

import vllm.envs as envs
from tests.v1.core.scheduler_driver import write_model_config
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.renderers import BaseRenderer
from vllm.sampling_params import SamplingParams
from vllm.triton_utils import HAS_TRITON
from vllm.v1.engine.input_processor import InputProcessor

pytestmark = [
    pytest.mark.cpu_test,
    pytest.mark.skip_global_cleanup,
    pytest.mark.skipif(not HAS_TRITON, reason="needs a GPU or TRITON_INTERPRET=1"),
]

VOCAB_SIZE = 4096
MOST_BAD_WORD_TOKENS = envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS


class LetterTokenizer:
    """A token a letter; a space in front adds none."""

    max_token_id = VOCAB_SIZE - 1

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(letter) for letter in text.lstrip()]


# The parameter, and arguments that have so many tokens of it.
PARAMETERS = {
    "allowed_token_ids": (1024, lambda n: {"allowed_token_ids": list(range(n))}),
    "logit_bias": (1024, lambda n: {"logit_bias": dict.fromkeys(range(n), 1.0)}),
    "stop_token_ids": (
        128,
        lambda n: {"stop_token_ids": list(range(n)), "min_tokens": 1},
    ),
    "bad_words": (
        MOST_BAD_WORD_TOKENS,
        lambda n: {"bad_words": ["a" * (n - 3), "bad"]},
    ),
}


def make_processor(folder: Path) -> InputProcessor:
    config = EngineArgs(
        model=write_model_config(folder),
        hf_overrides={"vocab_size": VOCAB_SIZE},
        skip_tokenizer_init=True,
        enforce_eager=True,
    ).create_engine_config()
    renderer = MagicMock(spec=BaseRenderer)
    renderer.tokenizer = LetterTokenizer()
    renderer.get_eos_token_id.return_value = None
    renderer._executor = None
    return InputProcessor(config, renderer)


def process(processor: InputProcessor, params: SamplingParams) -> SamplingParams:
    """Return the parameters that the engine gets."""
    prompt = tokens_input([1, 2, 3])
    request = processor.process_inputs("a", prompt, params, ("generate",))
    assert request.sampling_params is not None
    return request.sampling_params


def add_to_the_sampler(params: SamplingParams) -> None:
    """Do what the worker does with a new request."""
    # Before the states, as the CPU worker does.
    import vllm.v1.worker.cpu.shm  # noqa: F401
    from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState

    requests = MagicMock(max_num_reqs=1, device=torch.device("cpu"))
    requests.prompt_len.np = np.array([3])
    for state in (LogitBiasState, BadWordsState):
        state(None, requests).add_request(0, params)


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InputProcessor:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    return make_processor(tmp_path)


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_as_much_as_fits_reaches_the_sampler(
    processor: InputProcessor, parameter: str
) -> None:
    most, arguments = PARAMETERS[parameter]
    add_to_the_sampler(process(processor, SamplingParams(**arguments(most))))


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_more_is_rejected_before_the_engine(
    processor: InputProcessor, parameter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, arguments = PARAMETERS[parameter]
    params = SamplingParams(**arguments(most + 1))
    with pytest.raises(VLLMValidationError, match=f"{parameter} .* allowed: {most}"):
        process(processor, params)
    # The error that ends the engine without that check.
    monkeypatch.setattr(SamplingParams, "verify_v2_model_runner_limits", MagicMock())
    with pytest.raises(ValueError, match="Too many"):
        add_to_the_sampler(process(processor, params))


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_model_runner_v1_has_no_such_limits(
    tmp_path: Path, parameter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    most, arguments = PARAMETERS[parameter]
    params = SamplingParams(**arguments(most + 1))
    assert process(make_processor(tmp_path), params)
