"""AutoRound: rounding chosen by signed gradient steps, stored in GPTQ's layout."""

from typing import Any

PACKAGES = ["auto-round", "transformers", "torch"]


def run(steps: Any) -> None:
    """``iters=0`` in the options rounds to nearest; the tool's own default is 200."""
    steps.stage("load")
    import torch
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if steps.threads:
        torch.set_num_threads(steps.threads)
    tokenizer = AutoTokenizer.from_pretrained(steps.model)
    model = AutoModelForCausalLM.from_pretrained(steps.model, dtype="auto")
    length = int(steps.job["sequence_tokens"])
    rows = [tokenizer(text, truncation=True, max_length=length, return_tensors="pt") for text in steps.texts(tokenizer)]
    length = min((row["input_ids"].shape[1] for row in rows), default=length)
    data = [{name: row[name][:, :length] for name in ("input_ids", "attention_mask")} for row in rows]
    tool = AutoRound(
        model, tokenizer, scheme="W4A16", group_size=steps.group,
        iters=int(steps.options.get("iters", 200)), nsamples=len(data), seqlen=length, dataset=data, batch_size=1,
    )  # fmt: skip
    steps.stage("quantise")
    tool.quantize_and_save(str(steps.out), format="auto_gptq")
    steps.notes.append(f"samples cut to the shortest, {length} tokens: the tool stacks them")
