"""GPTQModel: GPTQ and AWQ in the checkpoint layouts of those names."""

import os
from typing import Any

PACKAGES = ["gptqmodel", "transformers", "torch"]


def run(steps: Any) -> None:
    """Load, quantise layer by layer on the calibration text, save."""
    steps.stage("load")
    if steps.threads:
        # It wants two at least, and takes every core where it is not told.
        os.environ["GPTQMODEL_CPU_WORKERS"] = str(max(2, steps.threads))
    import torch
    from gptqmodel import GPTQModel, QuantizeConfig
    from transformers import AutoTokenizer

    if steps.threads:
        torch.set_num_threads(steps.threads)
    settings: dict[str, Any] = {"bits": int(steps.options.get("bits", 4)), "group_size": steps.group}
    if "desc_act" in steps.options:
        settings["desc_act"] = bool(steps.options["desc_act"])
    if steps.job["method"] == "awq":
        settings |= {"quant_method": "awq", "format": "gemm"}
    tokenizer = AutoTokenizer.from_pretrained(steps.model)
    texts, length = steps.texts(tokenizer), int(steps.job["sequence_tokens"])
    model = GPTQModel.load(steps.model, QuantizeConfig(**settings))
    rows = [tokenizer(text, truncation=True, max_length=length) for text in texts]
    rows = [
        {"input_ids": row["input_ids"], "attention_mask": row["attention_mask"]} for row in rows if row["input_ids"]
    ]
    steps.stage("quantise")
    model.quantize(rows, batch_size=1)
    steps.stage("save")
    model.save(str(steps.out))
    tokenizer.save_pretrained(str(steps.out))
    _report(steps)


def _report(steps: Any) -> None:
    """What the stored file says: packed layers have a qweight, the others a plain weight."""
    from safetensors import safe_open

    for path in sorted(steps.out.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
        packed = {name.removesuffix(".qweight") for name in names if name.endswith(".qweight")}
        plain = {name.removesuffix(".weight") for name in names if name.endswith("proj.weight")}
        steps.tensors["int4"] = steps.tensors.get("int4", 0) + len(packed)
        steps.tensors["16-bit"] = steps.tensors.get("16-bit", 0) + len(plain)
        steps.skipped += sorted(plain)
    steps.skipped.append("lm_head")
