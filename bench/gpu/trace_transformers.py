"""A small torch-profiler trace of native Transformers decode, and what locate says of it: launch-bound is expected.

    PYTHONPATH=src python3 bench/gpu/trace_transformers.py --out results

A 1B shape with random weights in bf16, eager, one sequence: speed does not depend on the values. Needs a GPU for the
expected answer; ``--cpu`` runs a tiny shape on the CPU to try the script itself.
"""

import argparse
import sys
from pathlib import Path

import msgspec

import powerband

SHAPE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
TINY = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = TINY if args.cpu else SHAPE
    heads = shape["num_attention_heads"]
    config = LlamaConfig(**shape, num_key_value_heads=heads // 4, vocab_size=32000, max_position_embeddings=4096)
    place = "cpu" if args.cpu else "cuda"
    with torch.device(place):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    prompt = torch.randint(0, 32000, (1, 64), device=place)
    ask = {"do_sample": False, "max_new_tokens": 64, "min_new_tokens": 64, "attention_mask": torch.ones_like(prompt)}
    model.generate(prompt, **ask)  # first use compiles and allocates
    with powerband.profile(steps=10, warm_up=20, out=args.out / "transformers-decode.json.gz") as recorded:
        model.generate(prompt, **ask)
    print(recorded)
    print(recorded.summary)
    found = msgspec.to_builtins(recorded.diagnosis)
    (args.out / "transformers-decode.diagnosis.json").write_bytes(
        msgspec.json.format(msgspec.json.encode({"summary": recorded.summary, "diagnosis": found}), indent=1)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
