"""Write a small Llama and its tokenizer; a program of the serving environment.

Usage: python -m tools.inside.make_model CORPUS FOLDER

`tools.serve.model` runs it.
"""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.inside.small_model import (
    HEAD_SIZE,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    MAX_TOKENS,
    VOCABULARY,
    write_configuration,
    write_json,
)

SEED = 0

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

# With the usual initialisation a random model repeats itself whatever its KV cache
# holds. Sharp attention and a strong output projection make its tokens depend on
# single blocks, so that a wrong block shows.
ATTENTION_SHARPNESS = 1.7
ATTENTION_WEIGHT = 4.0


def weights() -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and values of all parameters."""
    generator = torch.Generator().manual_seed(SEED)

    def linear(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator)
        return values * (gain / math.sqrt(columns))

    yield "model.embed_tokens.weight", linear(VOCABULARY, HIDDEN, math.sqrt(HIDDEN))
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        kv = KV_HEADS * HEAD_SIZE
        yield f"{layer}.input_layernorm.weight", torch.ones(HIDDEN)
        yield (
            f"{attention}.q_proj.weight",
            linear(HIDDEN, HIDDEN, ATTENTION_SHARPNESS),
        )
        yield f"{attention}.k_proj.weight", linear(kv, HIDDEN, ATTENTION_SHARPNESS)
        yield f"{attention}.v_proj.weight", linear(kv, HIDDEN)
        yield f"{attention}.o_proj.weight", linear(HIDDEN, HIDDEN, ATTENTION_WEIGHT)
        yield f"{layer}.post_attention_layernorm.weight", torch.ones(HIDDEN)
        yield f"{mlp}.gate_proj.weight", linear(INTERMEDIATE, HIDDEN)
        yield f"{mlp}.up_proj.weight", linear(INTERMEDIATE, HIDDEN)
        yield f"{mlp}.down_proj.weight", linear(HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", torch.ones(HIDDEN)
    yield "lm_head.weight", linear(VOCABULARY, HIDDEN)


def write_tokenizer(corpus: Path, folder: Path) -> None:
    """Train a byte-level BPE tokenizer on a text and write it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[
            AddedToken(text, special=True, normalized=False) for text in (BOS, EOS, PAD)
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        corpus.read_text("utf-8").splitlines(keepends=True), trainer
    )
    if tokenizer.get_vocab_size() != VOCABULARY:
        sys.exit(f"{corpus} is too short for {VOCABULARY} tokens; name a longer text")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": MAX_TOKENS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", config)


def main(corpus: Path, folder: Path) -> None:
    """Write the whole model."""
    write_tokenizer(corpus, folder)
    write_configuration(folder)
    save_file(dict(weights()), folder / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
