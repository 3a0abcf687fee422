"""The seconds that one engine step needs by the datasheet, term by term, before any measurement."""

from powerband.records.config import EngineConfig
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.value import Record

# Bytes of one stored value, block scales included (ggml block layouts: 32 values plus scales).
DTYPE_BYTES = {
    "f32": 4.0,
    "fp32": 4.0,
    "float32": 4.0,
    "f16": 2.0,
    "fp16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "bf16": 2.0,
    "bfloat16": 2.0,
    "auto": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 1.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}


class Efficiency(Record):
    """What share of the datasheet a good kernel reaches, and host costs: assumed until a run calibrates them."""

    bandwidth: float
    compute: float
    attention: float
    overlap: float  # 1: weight streaming hides behind arithmetic (or the reverse); 0: they add up
    step_s: float
    layer_s: float
    sequence_s: float
    sampled_logit_s: float
    request_s: float


# GPU: STREAM-like reads reach about 0.85 of the datasheet and large GEMMs about 0.65 of dense peak (assumed from
# public kernel benchmarks; bench/predict_field.py publishes what these constants are worth).
GPU = Efficiency(
    bandwidth=0.82,
    compute=0.62,
    attention=0.40,
    overlap=0.9,
    step_s=0.8e-3,
    layer_s=20e-6,
    sequence_s=12e-6,
    sampled_logit_s=0.0,
    request_s=8e-3,
)
# CPU: weights are unpacked where they are used, so reading and arithmetic add up; the sampler walks the vocabulary.
CPU = Efficiency(
    bandwidth=0.6,
    compute=0.45,
    attention=0.3,
    overlap=0.3,
    step_s=0.4e-3,
    layer_s=10e-6,
    sequence_s=0.1e-3,
    sampled_logit_s=8e-9,
    request_s=3e-3,
)

ALL_REDUCE_LATENCY_S = 12e-6  # small-message NCCL all-reduce within a node (assumed)
EAGER_LAYER_S = 90e-6  # kernels of a layer launched one by one, about 12 at 7 us (assumed)
OVERSUBSCRIBED = 6.0  # threads beyond cores spin at barriers: measured 20 to 60 times slower; less is claimed


class Terms(Record):
    """Datasheet seconds of each part of a step; ``StepTime`` multiplies each by its calibrated factor."""

    overhead_s: float
    weight_s: float  # per pass over the weights that every token needs
    expert_s: float  # per pass if every expert were hit
    expert_share: float  # experts per token over experts
    decode_token_s: float
    prefill_token_s: float
    sampled_s: float  # output head and sampling, per sequence that samples
    sequence_s: float
    context_token_s: float  # per token of context in full-attention layers
    sliding_token_s: float  # the same in sliding layers, for at most ``window_tokens`` a sequence
    window_tokens: int
    state_s: float  # recurrent state, per sequence
    pair_s: float  # per (query, key) pair of a prefill
    collective_s: float
    collective_token_s: float
    request_s: float
    overlap: float
    ubatch_tokens: int


# A step of a model and a machine that nothing is known about: the order of magnitude of a small GPU service.
UNKNOWN_TERMS = Terms(
    overhead_s=5e-3,
    weight_s=5e-3,
    expert_s=0.0,
    expert_share=1.0,
    decode_token_s=3e-4,
    prefill_token_s=3e-4,
    sampled_s=0.0,
    sequence_s=1e-4,
    context_token_s=1e-7,
    sliding_token_s=0.0,
    window_tokens=0,
    state_s=0.0,
    pair_s=1e-9,
    collective_s=0.0,
    collective_token_s=0.0,
    request_s=3e-3,
    overlap=0.0,
    ubatch_tokens=1 << 30,
)


def compute_terms(model: ModelSpec, device: DeviceSpec, config: EngineConfig) -> Terms:
    """The roofline of one step: bytes over bandwidth, FLOPs over peak, launches and collectives over their latency.

    Knobs that change a term: ``tensor_parallel_size``, ``n_threads`` (CPU), the KV cache types, ``n_ubatch``,
    ``enforce_eager``. Every other knob is unknown here and leaves the terms as they are.
    """
    eff = CPU if device.kind == "cpu" else GPU
    tp = max(1, int(config.knobs.get("tensor_parallel_size", 1)))
    speed = _thread_share(device, config)
    bandwidth = device.bandwidth_bytes_per_s * eff.bandwidth * speed
    flops = peak_flops_per_s(model, device) * eff.compute * speed
    body, head = _parameters_used(model)
    dense_bytes, expert_bytes = _weight_bytes(model, body + head)
    full, sliding, window, state = _kv_bytes(model, kv_value_bytes(config, device), tp)
    token_s = 2 * body / flops / tp
    layers = model.n_layers
    launched = EAGER_LAYER_S if config.knobs.get("enforce_eager") is True and device.kind != "cpu" else eff.layer_s
    return Terms(
        overhead_s=eff.step_s + layers * launched,
        weight_s=dense_bytes / bandwidth / tp,
        expert_s=expert_bytes / bandwidth / tp,
        expert_share=model.experts_per_token / model.experts if model.experts else 1.0,
        decode_token_s=token_s,
        prefill_token_s=token_s,
        sampled_s=2 * head / flops / tp + model.vocab * eff.sampled_logit_s,
        sequence_s=eff.sequence_s,
        context_token_s=full / bandwidth,
        sliding_token_s=sliding / bandwidth,
        window_tokens=window,
        state_s=state / bandwidth,
        pair_s=_pair_flops(model) / (flops / eff.compute * eff.attention) / tp,
        collective_s=0.0 if tp == 1 else 2 * layers * ALL_REDUCE_LATENCY_S,
        collective_token_s=0.0 if tp == 1 else _all_reduce_bytes(model, tp) / _link(device),
        request_s=eff.request_s,
        overlap=eff.overlap,
        ubatch_tokens=int(config.knobs.get("n_ubatch", 512)) if config.engine == "llamacpp" else 1 << 30,
    )


def peak_flops_per_s(model: ModelSpec, device: DeviceSpec) -> float:
    """Dense peak at the dtype the matrices are multiplied in; weight-only quantisation computes in 16 bit."""
    known = device.flops_per_s
    wide = {"fp8": ("fp8", "int8"), "int8": ("int8", "fp8"), "nvfp4": ("fp4", "nvfp4", "fp8")}
    for dtype in (*wide.get(model.weight_dtype, ()), model.compute_dtype, "bf16", "fp16", "f16", "fp32"):
        if dtype in known:
            return known[dtype]
    return max(known.values(), default=1e12)


def kv_value_bytes(config: EngineConfig, device: DeviceSpec) -> float:
    """Mean bytes of one cached value over K and V."""
    knobs = config.knobs
    if config.engine == "llamacpp":
        pair = [str(knobs.get(name, "f16")) for name in ("cache_type_k", "cache_type_v")]
        return sum(DTYPE_BYTES.get(name, 2.0) for name in pair) / 2
    return DTYPE_BYTES.get(str(knobs.get("kv_cache_dtype", "auto")), 2.0)


def _thread_share(device: DeviceSpec, config: EngineConfig) -> float:
    if device.kind != "cpu" or not device.cores:
        return 1.0
    threads = int(config.knobs.get("n_threads", 0) or 0)
    if threads <= 0:
        return 1.0
    return threads / device.cores if threads <= device.cores else 1 / OVERSUBSCRIBED


def _parameters_used(model: ModelSpec) -> tuple[float, float]:
    """Active parameters multiplied for every token, and those of the output head (sampled tokens only)."""
    head = float(model.hidden * model.vocab)
    embeddings = head * _embedding_tables(model)
    return max(model.active_parameters - embeddings, 0.2 * model.active_parameters), head


def _embedding_tables(model: ModelSpec) -> int:
    """1 where input embedding and head are shared, else 2; guessed from the parameters the layers leave over."""
    attention = sum(
        group.count * model.hidden * group.head_dim * 2 * (model.heads + group.kv_heads)
        for group in model.layers
        if group.kind in ("attention", "sliding")
    )
    rest = model.parameters - attention - model.n_layers * 3 * model.hidden * model.intermediate
    table = model.hidden * model.vocab
    return 2 if not model.experts and table and rest > 1.5 * table else 1


def _weight_bytes(model: ModelSpec, used: float) -> tuple[float, float]:
    """Bytes read by every pass and bytes of all experts; an embedding table that is only looked up is left out."""
    per_parameter = model.weight_bytes / model.parameters
    if not model.experts:
        return per_parameter * min(used, model.parameters), 0.0
    idle_share = 1 - model.experts_per_token / model.experts
    experts = (model.parameters - model.active_parameters) / idle_share if idle_share > 0 else 0.0
    return per_parameter * max(model.parameters - experts, 0.0), per_parameter * experts


def _kv_bytes(model: ModelSpec, value_bytes: float, tp: int) -> tuple[float, float, int, float]:
    """Bytes read per context token in full and in sliding layers, the window, and state bytes per sequence."""
    full = sliding = state = 0.0
    window = 0
    for group in model.layers:
        heads = max(group.kv_heads / tp, 1.0) if group.kv_heads else 0.0
        values = heads * (group.head_dim + (group.v_head_dim or group.head_dim))
        if group.kind == "attention":
            full += group.count * values * value_bytes
        elif group.kind == "mla":
            full += group.count * group.latent_dim * value_bytes
        elif group.kind == "sliding":
            sliding += group.count * values * value_bytes
            window = max(window, group.window_tokens)
        elif group.kind == "recurrent":
            state += 2 * group.count * group.state_values * (group.state_bytes_per_value or 4.0)  # read and written
    return full, sliding, window, state


def _pair_flops(model: ModelSpec) -> float:
    """FLOPs per (query, key) pair: QK^T and AV, two FLOPs a multiply-add, all heads and attending layers."""
    flops = 0.0
    for group in model.layers:
        if group.kind in ("attention", "sliding"):
            flops += group.count * 2 * model.heads * (group.head_dim + (group.v_head_dim or group.head_dim))
        elif group.kind == "mla":
            flops += group.count * 4 * model.heads * (group.head_dim or group.latent_dim)
    return flops


def _all_reduce_bytes(model: ModelSpec, tp: int) -> float:
    """Bytes each rank moves per token: two ring all-reduces a layer of ``hidden`` 16-bit values."""
    return 2 * model.n_layers * model.hidden * 2 * 2 * (tp - 1) / tp


def _link(device: DeviceSpec) -> float:
    return device.link_bytes_per_s or device.pcie_bytes_per_s or 12e9
