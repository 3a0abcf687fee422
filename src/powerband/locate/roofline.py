"""The least time a step can take on a device: bytes over bandwidth, arithmetic over peak."""

from powerband.records.hardware import DeviceSpec
from powerband.records.memory import MemoryLedger
from powerband.records.model import ModelSpec

# Real kernels reach a half to nine tenths of a peak; three times the floor is not explained by it.
NEAR_FLOOR = 3.0


def decode_floor_s(
    model: ModelSpec | None,
    device: DeviceSpec | None,
    *,
    sequences: float,
    context_tokens: float = 0.0,
    ledger: MemoryLedger | None = None,
) -> float | None:
    """Seconds to read the active weights once and every sequence's KV once; None without model or device.

    ``context_tokens`` is the mean length of a sequence; its KV counts only where a ledger says its bytes.
    A mixture of experts reads its active share per token, and no more than all of its weights for many tokens.
    """
    if model is None or device is None or device.bandwidth_bytes_per_s <= 0:
        return None
    active = model.active_parameters / model.parameters if model.parameters else 1.0
    weights = model.weight_bytes * min(active * max(sequences, 1.0), 1.0)
    per_token = ledger.capacity.kv_bytes_per_token if ledger is not None else 0
    return (weights + per_token * context_tokens * sequences) / device.bandwidth_bytes_per_s


def prefill_floor_s(model: ModelSpec | None, device: DeviceSpec | None, tokens: float) -> float | None:
    """Seconds of arithmetic for prompt tokens at the device's dense peak: 2 FLOP per active parameter and token."""
    if model is None or device is None:
        return None
    peak = device.flops_per_s.get(model.compute_dtype) or max(device.flops_per_s.values(), default=0.0)
    return 2.0 * model.active_parameters * tokens / peak if peak > 0 else None
