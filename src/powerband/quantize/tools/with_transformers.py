"""What Transformers quantises while loading: torchao int8 and int4, bitsandbytes int8 and nf4; then saved."""

from typing import Any

PACKAGES = ["torchao", "bitsandbytes", "transformers", "torch"]


def run(steps: Any) -> None:
    """Load with the quantiser's config, save; no calibration text is looked at."""
    steps.stage("quantise")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if steps.threads:
        torch.set_num_threads(steps.threads)
    model = AutoModelForCausalLM.from_pretrained(
        steps.model, dtype=torch.bfloat16, quantization_config=_config(steps), device_map=_place(torch)
    )
    steps.stage("save")
    safe = not steps.job["method"].startswith("int")
    try:
        model.save_pretrained(str(steps.out))
    except (NotImplementedError, ValueError, RuntimeError, KeyError):
        if safe:
            raise
        model.save_pretrained(str(steps.out), safe_serialization=False)  # torchao's tensors before it spoke safetensors
    AutoTokenizer.from_pretrained(steps.model).save_pretrained(str(steps.out))
    _report(steps, model, torch)


def _place(torch: Any) -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _config(steps: Any) -> Any:
    method = steps.job["method"]
    if method.startswith("bnb"):
        from transformers import BitsAndBytesConfig

        if method == "bnb-int8":
            return BitsAndBytesConfig(load_in_8bit=True)
        import torch

        return BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )  # fmt: skip
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    if method == "int8":
        return TorchAoConfig(Int8WeightOnlyConfig())
    return TorchAoConfig(_int4(steps))


def _int4(steps: Any) -> Any:
    """int4 in groups: packed on a card; on a CPU packed where this torchao can, else four bits held in eight."""
    import torch
    from torchao.quantization import Int4WeightOnlyConfig

    if torch.cuda.is_available():
        return Int4WeightOnlyConfig(group_size=steps.group)
    try:  # releases up to 0.16 have a layout for CPUs
        from torchao.quantization.quantize_.workflows import Int4OpaqueTensor  # noqa: F401

        return Int4WeightOnlyConfig(group_size=steps.group, int4_packing_format="opaque")
    except ImportError:
        from torchao.quantization import IntxWeightOnlyConfig
        from torchao.quantization.granularity import PerGroup

        steps.notes.append("this torchao packs no int4 for CPUs: values of four bits are held in eight")
        return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(steps.group))


def _report(steps: Any, model: Any, torch: Any) -> None:
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None or not isinstance(module, torch.nn.Linear):
            continue
        kind = type(weight.data if hasattr(weight, "quant_state") else weight).__name__
        plain = kind in ("Parameter", "Tensor") and weight.dtype in (torch.bfloat16, torch.float16, torch.float32)
        key = "16-bit" if plain else kind if kind not in ("Parameter", "Tensor") else str(weight.dtype)
        steps.tensors[key] = steps.tensors.get(key, 0) + 1
        if plain:
            steps.skipped.append(name)
