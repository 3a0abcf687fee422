"""The profiling step of vLLM: what one step of max_num_batched_tokens and one sampling of max_num_seqs allocate.

Read from the code of 0.26 (v1/worker/gpu_model_runner.py, v1/worker/gpu/model_runner.py, fused_moe, mla_attention.py);
the units of the forward pass are fitted, see account/data/vllm.toml.
"""

import msgspec

from powerband.account.constants import VllmRelease
from powerband.account.estimate import Estimate, about
from powerband.records.model import ModelSpec
from powerband.records.units import MIB, format_bytes
from powerband.records.value import Record

# llama.py and mistral.py overwrite gate and up with their product; qwen2.py and the others keep them to the end.
_FREES_GATE = frozenset({"LlamaForCausalLM", "MistralForCausalLM"})
_MLA_WORKSPACE_TOKENS = 64 * 1024  # mla_attention.py caps the context that prefill expands at once


class Step(Record):
    """What the step runs with: tokens and sequences, split over ``tp`` ranks; values of ``value_bytes``."""

    tokens: int
    seqs: int
    tp: int
    limit: int
    block_tokens: int
    hopper: bool
    value_bytes: int = 2
    compiled: bool = False  # torch.compile, off where graphs are


def predict_activation(model: ModelSpec, step: Step, release: VllmRelease) -> Estimate:
    """Peak of the profiling step on one rank.

    A start that finds its code in the compiler's cache sees less: neither the compiler's own peak nor the inputs that a
    piece holds while it is compiled (0.78 GiB of a Qwen3 8B that printed 1.29 at its first start). Hence the low end.
    """
    run, why = _peak(model, step, release)
    cold = about(run, why, share=0.15, floor=80 * MIB)
    if not step.compiled:
        return cold
    again, again_why = _peak(model, step, msgspec.structs.replace(release, held_units=0.0))
    warm = about(again, again_why, share=0.15, floor=80 * MIB)
    compiling = compiling_bytes(model, step, release)
    if compiling > run:
        why = f"compiling beside a copy of the embedding: {format_bytes(compiling)} (from its cache: {again_why})"
        cold = about(compiling, why, share=0.15, floor=80 * MIB)
    return msgspec.structs.replace(cold, low=min(cold.low, warm.low))


def _peak(model: ModelSpec, step: Step, release: VllmRelease) -> tuple[float, str]:
    """Bytes alive at the widest point of the step, and which point that is."""
    rows = min(step.seqs, step.tokens)
    hidden = step.tokens * model.hidden * step.value_bytes
    cublas = release.cublas_bytes_hopper if step.hopper else release.cublas_bytes
    experts = expert_workspace(model, step)
    forward = forward_bytes(model, step, release)
    if not release.experts_persist:
        forward, experts = forward + experts, 0.0
    scratch = min(release.sampler_scratch_rows, rows) * model.vocab * 4
    sampler = rows * model.vocab * release.sampler_bytes_per_logit + scratch + hidden + 2 * rows * model.hidden * 2
    if not release.sampler_when_chunked and step.tokens < step.limit:
        sampler = 0.0
    # Eager FP8 kernels need no cuBLAS: its workspace comes with the 16-bit head, when the forward pass is over.
    late = cublas if _copies_to_fp8(model, step, release) else 0.0
    what = f"the forward pass of {step.tokens} tokens"
    if sampler > forward - late:
        what = f"sampling {rows} rows of {model.vocab} logits"
    why = f"{what}: {format_bytes(max(forward, sampler))}"
    if experts:
        why += f", expert workspace {format_bytes(experts)}"
    return cublas + experts + max(forward - late, sampler), why


def compiling_bytes(model: ModelSpec, step: Step, release: VllmRelease) -> float:
    """What the compiler's own timing of the first piece holds: the embedding's table, its rows and their norm.

    Inferred, not read from code: 1.29 GiB of a Qwen3 8B are 1187 MiB of table and two tensors of 64 MiB, to 0.5 %.
    Sampling in 32 bits, of the same size, is ruled out: with 102400 logits x 1024 rows it would show in two other logs.
    """
    if not step.compiled or not release.compile_tables:
        return 0.0
    table = model.vocab * model.hidden / step.tp * release.compile_tables
    return (table + 2 * step.tokens * model.hidden) * step.value_bytes


def _copies_to_fp8(model: ModelSpec, step: Step, release: VllmRelease) -> bool:
    dense = not model.experts and model.architecture not in _FREES_GATE
    return bool(release.held_units) and model.quantisation == "fp8" and dense and not step.compiled


def forward_bytes(model: ModelSpec, step: Step, release: VllmRelease) -> float:
    """Tensors alive at the widest point of the step: in an MLP, or in the expansion of latent attention."""
    widths = (
        release.mlp_units * model.intermediate / step.tp
        + release.attention_units * model.heads * model.head_dim / step.tp
        + release.hidden_units * model.hidden
    )
    # Under experts the widest dense MLP runs before their workspace exists; counting both is already too much.
    if not model.experts and (step.compiled or model.architecture not in _FREES_GATE):
        widths += release.held_units * model.hidden
    mlp = step.tokens * widths * step.value_bytes
    if _copies_to_fp8(model, step, release):
        mlp += step.tokens * model.intermediate / step.tp  # the product, in FP8, beside itself
    expanded = latent_expansion(model, step)
    beside = step.tokens * (release.hidden_units + 1) * model.hidden * step.value_bytes
    return max(mlp, expanded + beside if expanded else 0.0)


def latent_expansion(model: ModelSpec, step: Step) -> float:
    """Keys and values that latent attention expands from its cache for a chunk of context."""
    group = next((group for group in model.layers if group.kind == "mla" and group.compression == 1), None)
    if group is None:
        return 0.0
    pages = 4 * step.seqs * step.block_tokens
    tokens = max(min(max(8 * step.limit, pages), _MLA_WORKSPACE_TOKENS), step.seqs * step.block_tokens)
    # The last dimensions of a query head are rotary and not expanded.
    width = group.head_dim - model.rope_dim + group.v_head_dim
    return tokens * model.heads / step.tp * width * step.value_bytes


def expert_workspace(model: ModelSpec, step: Step) -> float:
    """The two buffers of the fused experts (Triton), kept once allocated."""
    if not model.experts:
        return 0.0
    routed = step.tokens * model.experts_per_token
    width = model.expert_intermediate / step.tp
    return routed * (max(width, model.hidden) + max(2 * width, model.hidden)) * step.value_bytes


def capture_sizes(tokens: int, seqs: int) -> list[int]:
    """Batch sizes that vLLM captures graphs for, by default (config/vllm.py, _set_cudagraph_sizes)."""
    top = min(2 * seqs, 512, tokens)
    sizes = [size for size in (1, 2, 4) if size <= top]
    sizes += range(8, min(top + 1, 256), 8)
    sizes += range(256, top + 1, 16)
    if tokens <= top:
        sizes.append(tokens)
    return sorted(set(sizes))


def predict_graphs(model: ModelSpec, step: Step, release: VllmRelease) -> Estimate:
    """Memory of captured graphs: by layers and captured sizes; above 256, only sizes that decode can reach count."""
    sizes = capture_sizes(step.tokens, step.seqs)
    small, large = sum(size <= 256 for size in sizes), sum(256 < size <= step.seqs for size in sizes)
    each = release.graph_bytes_per_expert_layer_size if model.experts else release.graph_bytes_per_layer_size
    total = (small * each + large * release.graph_bytes_per_layer_large_size) * model.n_layers
    return about(total, f"{small + large} captured sizes x {model.n_layers} layers", share=0.4, floor=200 * MIB)
