"""What a quantisation is expected to take: time, memory and disk, before it starts.

Seconds are ``start + a * parameters + b * parameters * calibration tokens`` on the two-core machine where the constants
were fitted (docs/reference/quantisation.md has the runs), scaled by cores; other machines are within a factor of three.
"""

from powerband.quantize.methods import Job
from powerband.quantize.resized import in_format
from powerband.records.model import ModelSpec
from powerband.records.quantisation import Effort
from powerband.records.units import format_bytes
from powerband.records.value import Interval, Record

_REFERENCE_CORES = 2
_SPREAD = 3.0
_TORCH_BYTES = 900 << 20  # an interpreter with torch and transformers loaded
_LLAMA_BYTES = 120 << 20


class Cost(Record):
    """Seconds to start, per parameter, and per parameter and calibration token."""

    start_s: float
    parameter_s: float
    token_s: float = 0.0


# Fitted on SmolLM2-135M-Instruct, two cores with AVX-512, 2026-11.
COSTS = {
    ("llm-compressor", "gptq"): Cost(start_s=12, parameter_s=3.0e-7, token_s=1.2e-11),
    ("llm-compressor", "awq"): Cost(start_s=12, parameter_s=3.0e-7, token_s=4.0e-11),
    ("llm-compressor", "smoothquant"): Cost(start_s=12, parameter_s=3.0e-7, token_s=1.5e-11),
    ("llm-compressor", ""): Cost(start_s=12, parameter_s=5.0e-8),
    ("gptqmodel", ""): Cost(start_s=15, parameter_s=6.0e-7, token_s=3.0e-11),
    ("auto-round", ""): Cost(start_s=12, parameter_s=5.0e-7, token_s=3.0e-11),
    ("torchao", ""): Cost(start_s=8, parameter_s=2.0e-8),
    ("bitsandbytes", ""): Cost(start_s=8, parameter_s=2.0e-8),
    ("llama.cpp", ""): Cost(start_s=0.5, parameter_s=2.5e-8),
    ("mlx", ""): Cost(start_s=5, parameter_s=2.0e-8),
}


def estimate_effort(
    job: Job, model: ModelSpec, *, cores: int, calibration_tokens: int = 0, samples: int = 0, from_folder: bool = True
) -> Effort:
    """Expected time with a factor of three either way, peak memory, and disk at the worst moment."""
    cost = COSTS.get((job.tool.name, job.method.name)) or COSTS[(job.tool.name, "")]
    work_s = (cost.parameter_s + cost.token_s * calibration_tokens) * model.parameters
    seconds = cost.start_s + work_s * _REFERENCE_CORES / max(cores, 1)
    group = job.options.get("group")
    output = in_format(model, job.format, int(group) if group is not None else None).weight_bytes
    memory, why = _memory(job, model, output, calibration_tokens)
    converted = 2 * model.parameters if job.tool.name == "llama.cpp" and from_folder else 0
    return Effort(
        seconds=round(seconds, 1),
        interval_s=Interval(low=round(seconds / _SPREAD, 1), high=round(seconds * _SPREAD, 1)),
        memory_bytes=memory,
        output_bytes=output,
        disk_bytes=round(1.02 * output) + converted + (32 << 20),
        basis="assumed",
        why=f"{why}; time fitted on two cores, {samples} samples of {calibration_tokens} tokens in all",
    )


def _memory(job: Job, model: ModelSpec, output: int, tokens: int) -> tuple[int, str]:
    if job.tool.name == "llama.cpp":
        largest = max((part.parameters for part in model.parts), default=model.vocab * model.hidden)
        total = _LLAMA_BYTES + model.weight_bytes + 4 * largest + output // max(model.n_layers, 1)
        return total, f"the mapped source {format_bytes(model.weight_bytes)} and the widest tensor in 32 bits"
    loaded = 2 * model.parameters
    total = _TORCH_BYTES + loaded + output
    if job.method.calibration != "wanted":
        return total, f"16-bit weights {format_bytes(loaded)}, the result, and torch"
    states = 2 * 2 * tokens * model.hidden
    widest = max(model.intermediate, model.expert_intermediate, model.hidden)
    total += states + 3 * 4 * widest * widest
    return total, f"16-bit weights {format_bytes(loaded)}, activations of the samples {format_bytes(states)}, and torch"
