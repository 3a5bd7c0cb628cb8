"""The one small model of the tools: a Llama, as its configuration describes it."""

import json
from pathlib import Path

VOCABULARY = 2048
HIDDEN = 256
INTERMEDIATE = 512
LAYERS = 3
HEADS = 4
KV_HEADS = 2
HEAD_SIZE = HIDDEN // HEADS
MAX_TOKENS = 8192


def write_configuration(folder: Path, max_tokens: int = MAX_TOKENS) -> None:
    """Write config.json; a scheduler needs no more of a model.

    Args:
        folder: The model's folder.
        max_tokens: The longest sequence that the model claims to take.
    """
    configuration = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": max_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    write_json(folder / "config.json", configuration)


def write_json(path: Path, value: dict[str, object]) -> None:
    """Write one of a model's JSON files."""
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
