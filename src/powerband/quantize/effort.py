"""What a quantisation is expected to take: time, memory and disk, before it starts.

Seconds are ``start + (a * parameters + b * parameters * calibration tokens) / cores``, with constants fitted to CPU
seconds on one machine (docs/reference/quantisation.md has the runs); a factor of three either way is claimed.
"""

from powerband.quantize.methods import Job
from powerband.quantize.resized import in_format
from powerband.records.model import ModelSpec
from powerband.records.quantisation import Effort
from powerband.records.units import format_bytes
from powerband.records.value import Interval, Record

_SPREAD = 3.0
_TORCH_BYTES = 650 << 20  # an interpreter with torch and transformers loaded
_LLAMA_BYTES = 40 << 20
_EXTRA_BYTES = {"gptqmodel": 1200 << 20}  # seen: its kernels are compiled in the process
_TOKEN_BYTES = 36  # of a token's text, score and type in a GGUF file, with its share of the merges (SmolLM2: 36)


class Cost(Record):
    """CPU seconds to start, per parameter, and per parameter and calibration token."""

    start_s: float
    parameter_s: float
    token_s: float = 0.0


# Fitted to CPU seconds on SmolLM2-135M-Instruct, one core of a Xeon with AVX-512, 2026-11.
COSTS = {
    ("llm-compressor", "gptq"): Cost(start_s=12, parameter_s=2.0e-7, token_s=5.0e-11),
    ("llm-compressor", "awq"): Cost(start_s=12, parameter_s=2.0e-7, token_s=3.6e-10),
    ("llm-compressor", "smoothquant"): Cost(start_s=12, parameter_s=2.0e-7, token_s=5.0e-11),
    ("llm-compressor", "nvfp4"): Cost(start_s=12, parameter_s=2.0e-7, token_s=5.0e-11),
    ("llm-compressor", ""): Cost(start_s=5, parameter_s=1.0e-8),
    ("gptqmodel", ""): Cost(start_s=15, parameter_s=5.0e-7, token_s=6.0e-11),
    ("auto-round", ""): Cost(start_s=12, parameter_s=1.0e-6, token_s=2.0e-10),
    ("torchao", ""): Cost(start_s=4, parameter_s=5.0e-9),
    ("bitsandbytes", ""): Cost(start_s=4, parameter_s=2.0e-8),
    ("llama.cpp", ""): Cost(start_s=0.5, parameter_s=1.2e-8),
    ("llama.cpp", "searched"): Cost(start_s=0.5, parameter_s=7.5e-8),
    ("mlx", ""): Cost(start_s=1.5, parameter_s=5.0e-9),
}
_SEARCHED = ("q2_k", "q3_k", "iq")  # types whose scales are searched, or fall back to one that is


def estimate_effort(
    job: Job, model: ModelSpec, *, cores: int, calibration_tokens: int = 0, samples: int = 0, from_folder: bool = True
) -> Effort:
    """Expected time with a factor of three either way, peak memory, and disk at the worst moment."""
    cost = _cost(job)
    work_s = (cost.parameter_s + cost.token_s * calibration_tokens) * model.parameters
    seconds = cost.start_s + work_s / max(cores, 1)
    output = in_format(model, job.format, job.group).weight_bytes
    output += _TOKEN_BYTES * model.vocab if job.method.name == "gguf" else 0
    memory, why = _memory(job, model, output, calibration_tokens)
    converted = 2 * model.parameters if job.tool.name == "llama.cpp" and from_folder else 0
    return Effort(
        seconds=round(seconds, 1),
        interval_s=Interval(low=round(seconds / _SPREAD, 1), high=round(seconds * _SPREAD, 1)),
        memory_bytes=memory,
        output_bytes=output,
        disk_bytes=round(1.02 * output) + converted + (32 << 20),
        basis="assumed",
        why=f"{why}; time fitted on one core, {samples} samples of {calibration_tokens} tokens in all",
    )


def _cost(job: Job) -> Cost:
    kind = job.method.name
    if job.format.removeprefix("gguf:").startswith(_SEARCHED):
        kind = "searched"
    return COSTS.get((job.tool.name, kind)) or COSTS[(job.tool.name, "")]


def _memory(job: Job, model: ModelSpec, output: int, tokens: int) -> tuple[int, str]:
    if job.tool.name == "llama.cpp":
        largest = max((part.parameters for part in model.parts), default=model.vocab * model.hidden)
        total = _LLAMA_BYTES + model.weight_bytes + 4 * largest + output // max(model.n_layers, 1)
        return total, f"the mapped source {format_bytes(model.weight_bytes)} and the widest tensor in 32 bits"
    if job.tool.name == "mlx":
        return _LLAMA_BYTES + 3 * output, "the result and what is being written of it; the source is mapped"
    loaded = 2 * model.parameters
    total = _TORCH_BYTES + loaded + output + _EXTRA_BYTES.get(job.tool.name, 0)
    if job.method.calibration != "wanted":
        return total, f"16-bit weights {format_bytes(loaded)}, the result, and torch"
    states = 2 * 2 * tokens * model.hidden
    widest = max(model.intermediate, model.expert_intermediate, model.hidden)
    total += states + 3 * 4 * widest * widest
    return total, f"16-bit weights {format_bytes(loaded)}, activations of the samples {format_bytes(states)}, and torch"
