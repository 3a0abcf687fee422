"""Compare a quantised checkpoint with its reference in Transformers: perplexity ratio, divergence, agreement, CPU time.

    python bench/quantise_quality.py REFERENCE CANDIDATE TEXT.jsonl [--texts 16] [--tokens 256]

Run by the interpreter whose Transformers reads the candidate (powerband need not be installed there). Both models see
the same held-out text on one thread; intervals are a bootstrap over texts (90 %). CPU seconds are ratios of the two,
taken in turns: prompts of all tokens, and single tokens after them. One line of JSON on stdout.
"""

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

_DECODED = 12  # single tokens timed after each prompt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("candidate")
    parser.add_argument("text", type=Path)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    args = parser.parse_args()
    import torch
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.reference)
    lines = args.text.read_text(encoding="utf-8").splitlines()
    chosen = random.Random(0).sample(lines, args.texts)
    prompts = [tokenizer(json.loads(line)["text"], return_tensors="pt").input_ids[:, : args.tokens] for line in chosen]
    models = [load(place, torch) for place in (args.reference, args.candidate)]
    with torch.no_grad():
        rows = [one_text(models, prompt, torch) for prompt in prompts]
    print(json.dumps({"candidate": Path(args.candidate).name, "texts": len(rows), **summary(rows)}))
    return 0


def load(place: str, torch: Any) -> Any:
    """A folder as it is; a .gguf file widened to bf16, so its CPU times are those of the reference."""
    from transformers import AutoModelForCausalLM

    if not place.endswith(".gguf"):
        return AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16).eval()
    from transformers import GgufConfig

    path = Path(place)
    return AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    ).eval()


def one_text(models: list[Any], prompt: Any, torch: Any) -> dict[str, float]:
    """Sums over the positions of one text, for both models, and the CPU seconds of each."""
    found, seconds = [], []
    for model in models:
        began = time.process_time()
        out = model(prompt, use_cache=True)
        middle = time.process_time()
        cache, token = out.past_key_values, prompt[:, -1:]
        for _ in range(_DECODED):
            step = model(token, past_key_values=cache, use_cache=True)
            cache, token = step.past_key_values, step.logits[:, -1:].argmax(-1)
        seconds += [middle - began, time.process_time() - middle]
        found.append(torch.log_softmax(out.logits[0, :-1].float(), dim=-1))
    targets = prompt[0, 1:]
    reference, candidate = found
    nll = [-table.gather(1, targets[:, None]).sum().item() for table in found]
    divergence = (reference.exp() * (reference - candidate)).sum(-1).sum().item()
    same = (reference.argmax(-1) == candidate.argmax(-1)).sum().item()
    return {
        "n": len(targets), "before": nll[0], "after": nll[1], "kl": divergence, "same": same,
        "prefill_before_s": seconds[0], "decode_before_s": seconds[1], "prefill_s": seconds[2], "decode_s": seconds[3],
    }  # fmt: skip


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    def figures(sample: list[dict[str, float]]) -> dict[str, float]:
        total = {name: sum(row[name] for row in sample) for name in sample[0]}
        return {
            "perplexity": math.exp(total["after"] / total["n"]),
            "perplexity_ratio": math.exp((total["after"] - total["before"]) / total["n"]),
            "divergence_nats": total["kl"] / total["n"],
            "agreement": total["same"] / total["n"],
            "prefill_cpu_ratio": total["prefill_s"] / total["prefill_before_s"],
            "decode_cpu_ratio": total["decode_s"] / total["decode_before_s"],
        }

    generator = random.Random(1)
    draws = [figures(generator.choices(rows, k=len(rows))) for _ in range(1000)]
    result: dict[str, Any] = {}
    for name, value in figures(rows).items():
        ordered = sorted(draw[name] for draw in draws)
        result[name] = [round(number, 4) for number in (value, ordered[50], ordered[949])]
    return result


if __name__ == "__main__":
    sys.exit(main())
