"""Write the model configurations that upstream's suites ask a hub for.

Usage: python make_hub.py FOLDER, a program of the serving environment. FOLDER then
serves as HF_HOME of a process that is offline. Suites of the scheduler read sizes and
limits only, so there are no weights, and any multimodal model stands in for another.
"""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

REVISION = "0" * 40

OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "ffn_dim": 3072,
    "hidden_size": 768,
    "max_position_embeddings": 2048,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "torch_dtype": "float16",
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}

IMAGE_SIZE, PATCH_SIZE = 336, 14
IMAGE_TOKEN, PAD_TOKEN = 32000, 32001
VOCABULARY = 32064

LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": IMAGE_TOKEN,
    "image_seq_length": (IMAGE_SIZE // PATCH_SIZE) ** 2,
    "pad_token_id": PAD_TOKEN,
    "projector_hidden_act": "gelu",
    "text_config": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "torch_dtype": "float16",
        "vocab_size": VOCABULARY,
    },
    "torch_dtype": "float16",
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "image_size": IMAGE_SIZE,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": PATCH_SIZE,
        "projection_dim": 768,
    },
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "vocab_size": VOCABULARY,
}

IMAGE_PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "processor_class": "LlavaProcessor",
    "crop_size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
    "size": {"shortest_edge": IMAGE_SIZE},
}

PROCESSOR = {
    "processor_class": "LlavaProcessor",
    "image_token": "<image>",
    "num_additional_image_tokens": 1,
    "patch_size": PATCH_SIZE,
    "vision_feature_select_strategy": "default",
}


def snapshot(home: Path, name: str) -> Path:
    """Make the folder of a repository's files, as the hub's client lays it."""
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    files = repository / "snapshots" / REVISION
    files.mkdir(parents=True, exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs/main").write_text(REVISION, "ascii")
    return files


def write_json(path: Path, value: dict[str, object]) -> None:
    """Write a configuration file."""
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")


def write_tokenizer(files: Path) -> None:
    """Write a tokenizer of single bytes, with the image token where it belongs."""
    names = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<filler {i}>" for i in range(len(names), IMAGE_TOKEN)]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True) for name in ("<image>", "<pad>")]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
        model_max_length=4096,
    ).save_pretrained(files)


def main(home: Path) -> None:
    """Write all models."""
    for name in ("facebook/opt-125m", "facebook/opt-350m"):
        write_json(snapshot(home, name) / "config.json", OPT)
    for name in ("llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2.5-VL-3B-Instruct"):
        files = snapshot(home, name)
        write_json(files / "config.json", LLAVA)
        write_json(files / "preprocessor_config.json", IMAGE_PROCESSOR)
        write_json(files / "processor_config.json", PROCESSOR)
        write_tokenizer(files)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
