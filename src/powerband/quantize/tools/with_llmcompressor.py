"""llm-compressor: GPTQ and AWQ (W4A16), SmoothQuant and plain W8A8, FP8, NVFP4, in compressed-tensors."""

from typing import Any

PACKAGES = ["llmcompressor", "compressed-tensors", "transformers", "torch"]


def run(steps: Any) -> None:
    """Load, calibrate layer by layer, save; the head stays as it is."""
    steps.stage("load")
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if steps.threads:
        torch.set_num_threads(steps.threads)
    tokenizer = AutoTokenizer.from_pretrained(steps.model)
    model = AutoModelForCausalLM.from_pretrained(steps.model, dtype="auto")
    ignore = ["lm_head", "re:.*mlp.gate$", "re:.*router.*"]
    recipe, texts = _recipe(steps, ignore), steps.texts(tokenizer)
    length = int(steps.job["sequence_tokens"])
    arguments: dict[str, Any] = {"model": model, "recipe": recipe}
    if texts and steps.job["method"] not in ("fp8", "fp8-block", "w8a8"):
        rows = [tokenizer(text, truncation=True, max_length=length, add_special_tokens=False) for text in texts]
        rows = [row for row in rows if row["input_ids"]]
        data = Dataset.from_list([dict(row) for row in rows])
        arguments |= {"dataset": data, "max_seq_length": length, "num_calibration_samples": len(rows)}
    _spare_pinning(steps, torch)
    steps.stage("quantise")
    oneshot(**arguments)
    steps.stage("save")
    model.save_pretrained(str(steps.out), save_compressed=True)
    tokenizer.save_pretrained(str(steps.out))
    _report(steps, model)


def _spare_pinning(steps: Any, torch: Any) -> None:
    """llm-compressor 0.14 pins AWQ's activations for a card and fails where there is none; it would only save time."""
    if torch.cuda.is_available() or steps.job["method"] != "awq":
        return
    from llmcompressor.pipelines.cache import IntermediatesCache

    if hasattr(IntermediatesCache, "pin_memory"):
        IntermediatesCache.pin_memory = lambda *_, **__: None
        steps.notes.append("no card: the tool's pinning of memory was left out")


def _recipe(steps: Any, ignore: list[str]) -> Any:
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier

    method, group = steps.job["method"], steps.group
    if method == "gptq":
        order = "static" if steps.options.get("desc_act") else None
        return GPTQModifier(config_groups=_groups(group, symmetric=True, order=order), ignore=ignore)
    if method == "awq":
        from llmcompressor.modifiers.awq import AWQModifier

        return AWQModifier(config_groups=_groups(group, symmetric=bool(steps.options.get("sym", False))), ignore=ignore)
    if method == "smoothquant":
        from llmcompressor.modifiers.smoothquant import SmoothQuantModifier

        return [
            SmoothQuantModifier(smoothing_strength=0.8),
            GPTQModifier(targets="Linear", scheme="W8A8", ignore=ignore),
        ]
    schemes = {"w8a8": "W8A8", "fp8": "FP8_DYNAMIC", "fp8-block": "FP8_BLOCK", "nvfp4": "NVFP4"}
    return QuantizationModifier(targets="Linear", scheme=schemes[method], ignore=ignore)


def _groups(group: int, *, symmetric: bool, order: str | None = None) -> dict[str, Any]:
    weights: dict[str, Any] = {
        "num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group,
    }  # fmt: skip
    if order:
        weights["actorder"] = order
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


def _report(steps: Any, model: Any) -> None:
    import torch

    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None:
            steps.skipped.append(name)
        key = f"{scheme.weights.type}{scheme.weights.num_bits}" if scheme is not None else "16-bit"
        key = key.replace("QuantizationType.", "").lower()
        steps.tensors[key] = steps.tensors.get(key, 0) + 1
