"""What one pass reads and computes on each rank: weight bytes and seconds of arithmetic, from the model's parts."""

from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec, WeightPart
from powerband.records.value import Record
from powerband.simulate.efficiency import Efficiency

# Formats whose kernels multiply in a narrow type, by what the device must list for that; all others compute in 16 bit.
_NARROW = {
    "fp8": ("fp8",),
    "int8": ("int8",),
    "w8a8": ("int8",),
    "nvfp4": ("fp4", "nvfp4"),
    "mxfp4": ("fp4", "mxfp4"),
    "fp4": ("fp4", "nvfp4"),
}
_WIDE = ("bf16", "f16", "fp16", "tf32", "f32", "fp32")


class Work(Record):
    """Per rank: bytes read by every pass, bytes of all experts, seconds per token and per sampled token at the share
    of the peak that kernels reach."""

    dense_bytes: float
    expert_bytes: float
    token_s: float
    head_s: float


def compute_work(model: ModelSpec, device: DeviceSpec, tp: int, eff: Efficiency) -> Work:
    """From ``model.parts``; from the parameter counts where a model has none.

    An embedding that is only looked up is neither read nor multiplied; a tied one is the output head. Under tensor
    parallelism each part is divided as its ``split`` says.
    """
    if not model.parts:
        return _from_counts(model, device, tp, eff)
    share = model.experts_per_token / model.experts if model.experts else 1.0
    kv_heads = max((group.kv_heads for group in model.layers), default=1) or 1
    dense = experts = token_s = head_s = 0.0
    for part in model.parts:
        is_head = part.role == "head" or (part.role == "embedding" and model.tied)
        if part.role == "vision" or (part.role == "embedding" and not is_head):
            continue
        ranks = _ranks(part, tp, kv_heads)
        flops = _reached_flops_per_s(model, device, part.dtype, eff)
        seconds = 2 * part.parameters / ranks / flops
        if part.role == "experts":
            experts += part.bytes / ranks
            token_s += share * seconds / (eff.grouped_narrow if _is_narrow(device, part.dtype) else eff.grouped)
        else:
            dense += part.bytes / ranks
            if is_head:
                head_s += seconds
            else:
                token_s += seconds
    return Work(dense_bytes=dense, expert_bytes=experts, token_s=token_s, head_s=head_s)


def _reached_flops_per_s(model: ModelSpec, device: DeviceSpec, weight_dtype: str, eff: Efficiency) -> float:
    """Of the peak, what kernels reach: a narrow type's own share only where the device multiplies in it, since weights
    that are unpacked first go through 16-bit kernels."""
    share = eff.compute_share(weight_dtype) if _is_narrow(device, weight_dtype) else eff.compute
    return matmul_flops_per_s(device, weight_dtype, model.compute_dtype) * share


def _is_narrow(device: DeviceSpec, weight_dtype: str) -> bool:
    """Whether the device multiplies this format in 8 or 4 bit."""
    return any(
        weight_dtype.startswith(prefix) and any(name in device.flops_per_s for name in names)
        for prefix, names in _NARROW.items()
    )


def matmul_flops_per_s(device: DeviceSpec, weight_dtype: str, compute_dtype: str) -> float:
    """Dense peak at the type that the kernels multiply in: weight-only formats are unpacked to 16 bit first."""
    known = device.flops_per_s
    for prefix, names in _NARROW.items():
        if weight_dtype.startswith(prefix):
            for name in names:
                if name in known:
                    return known[name]
    for name in (compute_dtype, *_WIDE):
        if name in known:
            return known[name]
    return max(known.values(), default=1e12)


def _ranks(part: WeightPart, tp: int, kv_heads: int) -> int:
    if part.split == "replicated":
        return 1
    return min(tp, kv_heads) if part.split == "kv_heads" else tp


def _from_counts(model: ModelSpec, device: DeviceSpec, tp: int, eff: Efficiency) -> Work:
    """A dense model with an untied head is assumed where the layers leave room for two tables."""
    flops = _reached_flops_per_s(model, device, model.weight_dtype, eff)
    head = float(model.hidden * model.vocab)
    attention = sum(
        group.count * model.hidden * group.head_dim * 2 * (model.heads + group.kv_heads)
        for group in model.layers
        if group.kind in ("attention", "sliding")
    )
    rest = model.parameters - attention - model.n_layers * 3 * model.hidden * model.intermediate
    tables = 2 if not model.experts and head and rest > 1.5 * head else 1
    body = max(model.active_parameters - tables * head, 0.2 * model.active_parameters)
    per_parameter = model.weight_bytes / model.parameters
    experts = 0.0
    if model.experts > model.experts_per_token:
        experts = (model.parameters - model.active_parameters) / (1 - model.experts_per_token / model.experts)
    dense = model.parameters - experts if model.experts else min(body + head, model.parameters)
    return Work(
        dense_bytes=per_parameter * max(dense, 0.0) / tp,
        expert_bytes=per_parameter * experts / tp,
        token_s=2 * body / flops / tp,
        head_s=2 * head / flops / tp,
    )
