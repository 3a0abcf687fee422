"""The ladder from native Transformers to a tuned vLLM, on one card, for a model's shape with random weights.

    . /path/to/vllm-env          # whatever puts `vllm` on PATH; its python also has torch and transformers
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/ladder.py llama-13b --home out --budget 9m
    PYTHONPATH=src:$PYTHONPATH python3 bench/gpu/ladder.py llama-13b --home out --budget 9m --resume

Needs no model hub: the model is a config.json and a generated tokenizer; speed and memory do not depend on the values
of weights (quality does, so a quantised rung stays "to be gated"). A call ends within its budget; --resume goes on.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Shapes of published models, by their own config.json, and the first one a thousandth of them, to rehearse on a CPU.
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        **LLAMA,
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 2048,
        "max_position_embeddings": 4096,
    },
    "llama-13b": {  # Llama-2-13B
        **LLAMA,
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "gqa-7b": {  # Mistral-7B
        **LLAMA,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": None,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
    },
    "moe-30b-a3b": {  # Qwen3-30B-A3B
        **LLAMA,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "attention_bias": False,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
    },
}
# Mixed lengths: chat-like prompts with a long tail, answers of some tens of tokens.
TRAFFIC = "in=lognormal(5.3,0.9,16..2000),out=lognormal(4.1,0.6,8..256),concurrency=64"
SLO = "ttft=500ms,tpot=50ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("--home", type=Path, required=True, help="where the journal, the reports and the model go")
    parser.add_argument("--engine", default="vllm", help="the engine at the top (default vllm)")
    parser.add_argument("--budget", default="9m", help="time of this call (default 9m)")
    parser.add_argument("--window", default="20s", help="time of one load (default 20s)")
    parser.add_argument("--traffic", default=TRAFFIC, help=f"default {TRAFFIC}")
    parser.add_argument("--slo", default=SLO, help=f"default {SLO}")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--resume", action="store_true", help="go on with the last session of --home")
    given = parser.parse_args()
    command = [sys.executable, "-m", "powerband", "loop"]
    if given.resume:
        command += ["--resume"]
    else:
        model = write_model(given.home / "models" / given.shape, SHAPES[given.shape])
        settings = ["load_format=dummy", *given.set]
        command += [str(model), "--from", "transformers", "--engine", given.engine, "--device", given.device]
        command += ["--traffic", given.traffic, "--slo", given.slo, "--window", given.window]
        command += [word for pair in settings for word in ("--set", pair)]
    command += ["--home", str(given.home), "--budget", given.budget]
    return subprocess.run(command, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"}).returncode


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    """config.json, and a byte-level tokenizer whose vocabulary is filled up to vocab_size."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    size = config["vocab_size"]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {f"<filler_{number}>": number for number in range(256, size - 2)}
    vocab |= {"<s>": size - 2, "</s>": size - 1}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": vocab[word], "content": word, **plain} for word in ("<s>", "</s>")]
    tokenizer: dict[str, Any] = {
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


if __name__ == "__main__":
    sys.exit(main())
