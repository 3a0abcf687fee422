"""A Llama of a few thousand weights with a byte-level tokenizer, made on the spot."""

import importlib.util
import json
from pathlib import Path

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 260,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 258,
    "eos_token_id": 259,
    "torch_dtype": "float32",
}


def require(*packages: str) -> None:
    """Skip the test with a reason where a package is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed here")


def write_tiny_model(folder: Path) -> Path:
    """config.json and a tokenizer of 256 bytes and some specials."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"<pad>": 256, "<unk>": 257, "<s>": 258, "</s>": 259}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": vocab[word], "content": word, **plain} for word in ("<s>", "</s>")]
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "ByteFallback"},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True, "unk_token": None},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def save_random_weights(folder: Path) -> Path:
    """Random weights of a fixed seed beside the config, so that several loads give the same model."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    model.to(torch.float32).save_pretrained(folder)
    return folder
