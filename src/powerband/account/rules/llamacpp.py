"""llama.cpp: weights where n_gpu_layers puts them, a KV cache of n_ctx cells, compute buffers of one ubatch.

Rules read from llama.cpp (llama-context.cpp, llama-kv-cache.cpp) and from the buffers a server of 2026-10 prints: the
cells are split over n_parallel slots and padded to 256 each; K and V have their own types; recurrent state is f32.
"""

from powerband.account.constants import engine_constants
from powerband.account.estimate import Estimate, about, exact, nothing
from powerband.account.kv_cache import layer_values, state_bytes
from powerband.account.plan import Plan, Pool, Request
from powerband.account.settings import Settings
from powerband.records.hardware import DeviceSpec
from powerband.records.memory import EngineReport
from powerband.records.model import LayerGroup, ModelSpec
from powerband.records.units import KIB, MIB
from powerband.records.value import Record

_PAD_CELLS = 256
_F32 = 4
# The compute buffer as ggml's allocator lays it out, in f32 values per token of one ubatch: five rows of the hidden
# size and three of the MLP, less those that fit into the two rows attention has freed. Found from the buffers of
# thirteen shapes (dense and mixture of experts), which it meets to 0.2 %.
_HIDDEN_ROWS, _MLP_ROWS, _FREED_ROWS = 5, 3, 2
# Without flash attention: the scores of every head, and beside them three rows each of hidden and query, two of keys.
_ATTENTION_ROWS, _KEY_ROWS = 3, 2
_MEASURED = ("llama", "qwen3moe")  # architectures of those shapes, by their GGUF names
_INPUT_BYTES = 16 * KIB  # tokens, positions and cell indices of 512 tokens


class _Run(Record):
    """The knobs that bear on memory; ``first_layer`` is the first of the layers on this device."""

    slots: int
    cells: int  # of one slot
    ubatch: int
    key_bytes: float
    value_bytes: float
    flash: bool
    unified: bool
    full_window: bool
    first_layer: int
    head_here: bool
    offloaded: bool
    share: int  # devices that share the layers


def plan_llamacpp(request: Request) -> Plan:
    """One process on the host, or one of ``count`` cards; the cache is allocated in full at the start."""
    model, device = request.model, request.device
    run = _read_run(Settings(request.config), model, device, request.count)
    weights = _weights(model, run)
    activation = _compute_buffer(model, run).plus(run.slots * model.vocab * _F32, "logits of every slot")
    if request.residual:
        weights = weights.shifted(request.residual.weights_bytes, request.residual.source)
        activation = activation.scaled(request.residual.activation_ratio, request.residual.source)
    pool = _pool(model, run)
    facts = engine_constants("llamacpp")
    if device.kind == "cpu":
        other = about(facts["process_bytes"], "the server and its tokenizer", floor=16 * MIB, basis="assumed")
    else:
        other = about(facts["context_bytes_cuda"], "context and libraries", floor=150 * MIB, basis="assumed")
    return Plan(
        memory_bytes=device.memory_bytes,
        ranks=request.count,
        weights=weights,
        activation=activation,
        non_torch=other,
        cuda_graphs=nothing("counted with the context" if device.kind != "cpu" else "none on a CPU"),
        pool=pool,
        max_model_len=run.cells if not run.unified else run.cells * run.slots,
        max_num_seqs=run.slots,
        reported=EngineReport(
            weights_bytes=weights.bytes,
            activation_bytes=activation.bytes,
            kv_cache_bytes=pool.bytes.bytes,
            kv_tokens=run.cells * run.slots,
            max_concurrency=run.slots,
            max_model_len=run.cells,
        ),
        engine_version=request.version,
        assumed=_notes(run, model),
    )


def _read_run(knobs: Settings, model: ModelSpec, device: DeviceSpec, count: int) -> _Run:
    slots = knobs.whole("n_parallel", 1)
    asked = knobs.whole("n_ctx", 0, low=0) or model.context_tokens or 4096
    layers = model.n_layers
    wanted = knobs.whole("n_gpu_layers", -1, low=-1)
    on_card = layers + 1 if wanted < 0 else min(wanted, layers + 1)
    offloaded = device.kind != "cpu"
    return _Run(
        slots=slots,
        cells=_pad(max(-(-asked // slots), 1)),
        ubatch=min(knobs.whole("n_ubatch", 512), knobs.whole("n_batch", 2048)),
        key_bytes=knobs.dtype_bytes("cache_type_k", "f16", 2.0),
        value_bytes=knobs.dtype_bytes("cache_type_v", "f16", 2.0),
        flash=knobs.word("flash_attn", "auto") not in ("off", "false", "0"),
        unified=knobs.flag("kv_unified"),
        full_window=knobs.flag("swa_full"),
        first_layer=max(layers - on_card + (on_card > layers), 0) if offloaded else 0,
        head_here=not offloaded or on_card > layers,
        offloaded=offloaded,
        share=count if offloaded else 1,
    )


def _pad(cells: int) -> int:
    return -(-cells // _PAD_CELLS) * _PAD_CELLS


def _notes(run: _Run, model: ModelSpec) -> tuple[str, ...]:
    notes = []
    if run.offloaded:
        notes.append("llama.cpp on a card was not run here: the compute buffer is the host's")
        if run.first_layer:
            notes.append(f"the first {run.first_layer} of {model.n_layers} layers stay in the host's memory")
    return tuple(notes)


def _weights(model: ModelSpec, run: _Run) -> Estimate:
    """On a card: its layers and the output head; the input embedding stays with the host."""
    if not run.offloaded:
        return exact(model.weight_bytes, "the tensors of the file, mapped", model.basis)
    layers = sum(part.bytes for part in model.parts if part.layer >= run.first_layer)
    outside = sum(part.bytes for part in model.parts if part.layer < 0 and part.role != "embedding")
    if model.tied:
        outside += sum(part.bytes for part in model.parts if part.role == "embedding")
    total = layers / run.share + (outside if run.head_here else 0)
    return exact(total, f"layers {run.first_layer} to {model.n_layers - 1} on {run.share} cards", model.basis)


def _pool(model: ModelSpec, run: _Run) -> Pool:
    size, per_token = 0.0, 0.0
    order = model.layer_order or tuple(index for index, group in enumerate(model.layers) for _ in range(group.count))
    for layer, index in enumerate(order):
        group = model.layers[index]
        keys, values = layer_values(group)
        each = keys * run.key_bytes + values * run.value_bytes
        per_token += each
        if layer >= run.first_layer:
            size += run.slots * (_cells(group, run) * each + state_bytes(group))
    total = run.cells * run.slots
    return Pool(
        bytes=exact(
            size / run.share, f"{run.slots} x {run.cells} cells of {per_token:.0f} bytes, allocated at the start"
        ),
        tokens=total,
        max_concurrency=float(run.slots),
        bytes_per_token=per_token,
        dtype_bytes=(run.key_bytes + run.value_bytes) / 2,
        slots=True,
    )


def _cells(group: LayerGroup, run: _Run) -> int:
    """Cells of one slot: a windowed layer keeps its window and one ubatch, padded, unless swa_full asks for all."""
    if group.kind != "sliding" or run.full_window:
        return run.cells
    return min(run.cells, _pad(group.window_tokens + run.ubatch))


def _compute_buffer(model: ModelSpec, run: _Run) -> Estimate:
    """The widest point of the graph of one ubatch."""
    rows = run.ubatch * _F32
    cells = run.cells * (run.slots if run.unified else 1)
    hidden, queries = model.hidden * rows, model.heads * model.head_dim * rows
    mask = run.ubatch * cells * (2 if run.flash else _F32)
    mlp = _HIDDEN_ROWS * hidden + _wide_values(model) * rows + mask
    inputs = _INPUT_BYTES * run.ubatch / 512
    if run.flash:
        return about(mlp + inputs, f"one ubatch of {run.ubatch} tokens and its mask", share=_doubt(model))
    keys = max((group.kv_heads * group.head_dim for group in model.layers), default=0) * rows
    scores = model.heads * run.ubatch * cells * _F32
    attention = scores + mask + _ATTENTION_ROWS * (hidden + max(hidden, queries)) + _KEY_ROWS * keys
    why = f"attention scores of one ubatch of {run.ubatch} tokens over {cells} cells, without flash attention"
    return about(max(attention, mlp) + inputs, why, share=_doubt(model))


def _wide_values(model: ModelSpec) -> float:
    """Values of the MLP per token that do not fit into what attention freed; with experts, of those that are used."""
    freed = _FREED_ROWS * min(model.hidden, model.heads * model.head_dim)
    if not model.experts:
        return _unplaced(model.intermediate, freed)
    used = model.experts_per_token
    # The router's own values take a little of the freed rows; each used expert's output is a row of the hidden size.
    return max(_unplaced(used * model.expert_intermediate, freed - 1), used * model.hidden)


def _unplaced(width: int, freed: int) -> float:
    return (_MLP_ROWS - min(_MLP_ROWS, freed // width)) * width if width else 0.0


def _doubt(model: ModelSpec) -> float:
    return 0.01 if model.architecture in _MEASURED else 0.25
