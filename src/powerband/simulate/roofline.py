"""The seconds that one engine step needs by the datasheet, term by term, before any measurement."""

from powerband.records.config import TENSOR_KNOB, EngineConfig, tensor_parallel
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.value import Record
from powerband.simulate.all_reduce import step_collectives
from powerband.simulate.attention import activation_bytes, compute_cache_reads, compute_pair_flops
from powerband.simulate.efficiency import CPU, GPU, extra_layers_s
from powerband.simulate.stored import stored_model
from powerband.simulate.work import compute_work, matmul_flops_per_s

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
    "fp8_e4m3fn": 1.0,
    "fp8_e5m2": 1.0,
    "nvfp4": 9 / 16,
    "int8": 1.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}


# Knobs that compute_terms reads: configs that agree on them have the same terms.
TERM_KNOBS = (
    *sorted(set(TENSOR_KNOB.values())),
    "n_threads",
    "n_threads_batch",
    "n_ubatch",
    "flash_attn",
    "cache_type_k",
    "cache_type_v",
    "kv_cache_dtype",
    "enforce_eager",
    "quantization",
    "api_server_count",
    "max_num_seqs",
    "max_cudagraph_capture_size",
    "cudagraph_mode",
)
# Kernels of a layer launched one by one from Python, on the virtual hosts of H200s, by lone decode of vLLM 0.26 without
# graphs: 16.5 ms over 32 layers, 22.3 over 40; with experts 54.8 over 48. A quicker host takes less.
EAGER_LAYER_S, EAGER_EXPERT_LAYER_S = 0.53e-3, 0.6e-3
# The largest step that vLLM replays from a graph where not told (_set_cudagraph_sizes in its config). One with prompts
# beyond it is launched kernel by kernel, which with experts takes longer than the card's own work: with 30B-A3B on an
# H200 steps of 302 tokens took 23 ms, of 617 45, of 1,955 55, of 6,119 110 (regression over a closed loop's gaps); with
# a dense 13B 23, 33, 95 and 217.
GRAPH_TOKENS = 512
# Transformers runs each module of a layer in Python: 43 to 57 ms a token seen for 40 layers on H200s, 37 ms for 30
# small ones on a CPU, less what the weights take.
TRANSFORMERS_LAYER_S = {"gpu": 1.1e-3, "cpu": 0.4e-3}
# ggml's repacked CPU kernels multiply four tokens at a time and the rest one by one (ggml-cpu/repack.cpp). Seen with
# 1 to 8 slots: 11, 20, 29, 28, 39, 40, 48, 52 ms a step.
CPU_TILE = 4
CPU_VECTOR_SHARE = 0.25  # of a prompt's attention rate, where one query at a time meets the cache (assumed)
# Without flash attention llama.cpp's decode multiplies with the whole cache view, which is padded to so many cells
# (llama_kv_cache::get_n_kv); with it, masked cells are passed over.
UNFUSED_CELLS = 256
# Speed of a share of the cores: 1 of 2 gave 0.60 of what both did (medians over 36 llama.cpp configs), whose barriers
# wait for the core that the client and the server's own threads use too.
SCALING = 0.74
# vLLM's API server, one process (``api_server_count`` divides), on the hosts of H200s: of 256 requests sent at once one
# more was with the scheduler every 1.4 to 1.7 ms, beside the tokens of those before it; tokens of a step reached the
# client 27 to 46 us apart and are detokenised before that, and with 256 in flight they set the pace, at 50 us and on a
# slower host 70 (prediction-vllm.md).
FRONT_REQUEST_S, FRONT_TOKEN_S = 2e-3, 60e-6
OVERSUBSCRIBED = 6.0  # threads beyond cores spin at barriers: measured 20 to 60 times slower; less is claimed


class Terms(Record):
    """Datasheet seconds of each part of a step; ``StepTime`` multiplies each by its calibrated factor."""

    overhead_s: float
    prefill_step_s: float  # launches that a step with prompt tokens adds
    weight_s: float  # per pass over the weights that every token needs
    expert_s: float  # per pass if every expert were hit
    expert_share: float  # experts per token over experts
    token_s: float  # matrix products of one token, without the output head
    sampled_s: float  # output head, per sequence that samples
    single_ratio: float  # weights and arithmetic of a step of a single token, over those of one in a larger step
    tile_tokens: int  # a matrix kernel takes this many tokens at once; those left over cost more (1: no such tiles)
    sequence_s: float  # sampling and other host work, per sequence that samples
    context_token_s: float  # per token of context in full-attention layers
    sliding_token_s: float  # the same in sliding layers, for at most ``window_tokens`` a sequence
    window_tokens: int
    state_s: float  # recurrent state, per sequence
    pair_s: float  # per (query, key) pair of a prefill
    capped_pair_s: float  # the same in layers where a query attends to at most ``cap_tokens``
    cap_tokens: int
    collective_s: float
    collective_token_s: float
    request_s: float
    overlap: float
    ubatch_tokens: int
    pad_tokens: int = 1  # a decoding sequence's context counts in whole multiples of this
    front_request_s: float = 0.0  # what the front end is busy with a request, a part of ``request_s``
    front_token_s: float = 0.0  # and with handing out a token
    launch_s: float = 0.0  # host time of a step without a graph, beside which the device works
    graph_tokens: int = 1 << 30  # of the largest decode step in a graph, and of the largest with prompts
    prompt_graph_tokens: int = 1 << 30


# A step of a model and a machine that nothing is known about: the order of magnitude of a small GPU service.
UNKNOWN_TERMS = Terms(
    overhead_s=5e-3,
    prefill_step_s=0.0,
    weight_s=5e-3,
    expert_s=0.0,
    expert_share=1.0,
    token_s=3e-4,
    sampled_s=0.0,
    single_ratio=1.0,
    tile_tokens=1,
    sequence_s=1e-4,
    context_token_s=1e-7,
    sliding_token_s=0.0,
    window_tokens=0,
    state_s=0.0,
    pair_s=1e-9,
    capped_pair_s=0.0,
    cap_tokens=0,
    collective_s=0.0,
    collective_token_s=0.0,
    request_s=3e-3,
    overlap=0.0,
    ubatch_tokens=1 << 30,
)


def compute_terms(model: ModelSpec, device: DeviceSpec, config: EngineConfig) -> Terms:
    """The roofline of one step: bytes over bandwidth, FLOPs over peak, launches and collectives over their latency.

    Knobs that change a term are TERM_KNOBS; every other one is unknown here and leaves the terms.
    """
    eff = CPU if device.kind == "cpu" else GPU
    fronts = max(1, int(config.knobs.get("api_server_count", 0) or 1)) if config.engine == "vllm" else 0
    tp = tensor_parallel(config)
    collective_s, collective_token_s = step_collectives(model, device, tp)
    single, several = thread_shares(device, config)
    bandwidth = device.bandwidth_bytes_per_s * several
    work = compute_work(stored_model(model, config), device, tp, eff)
    reads, pairs = compute_cache_reads(model, kv_value_bytes(config), tp), compute_pair_flops(model, tp)
    kv_bandwidth = bandwidth * eff.bandwidth
    attention = matmul_flops_per_s(device, "", model.compute_dtype) * eff.attention * several
    layers = model.n_layers
    module_s = TRANSFORMERS_LAYER_S["cpu" if device.kind == "cpu" else "gpu"]
    layer_s = module_s if config.engine == "transformers" else eff.layer_s
    return Terms(
        overhead_s=eff.step_s + layers * layer_s + extra_layers_s(model, eff),
        prefill_step_s=layers * eff.prefill_layer_s,
        weight_s=work.dense_bytes / (bandwidth * eff.bandwidth),
        expert_s=work.expert_bytes / (bandwidth * eff.expert_bandwidth),
        expert_share=model.experts_per_token / model.experts if model.experts else 1.0,
        token_s=work.token_s / several + activation_bytes(model) / (bandwidth * eff.bandwidth),
        sampled_s=work.head_s / several,
        single_ratio=several / single,
        tile_tokens=CPU_TILE if device.kind == "cpu" and config.engine == "llamacpp" else 1,
        sequence_s=eff.sequence_s + model.vocab * eff.sampled_logit_s,
        # A CPU does not hide a decode step's attention arithmetic behind the reads: a pair for each context token.
        context_token_s=reads.full / kv_bandwidth
        + (pairs.full / attention / CPU_VECTOR_SHARE if device.kind == "cpu" else 0.0),
        sliding_token_s=reads.capped / kv_bandwidth,
        window_tokens=reads.window_tokens,
        state_s=reads.state / kv_bandwidth,
        pair_s=pairs.full / attention,
        capped_pair_s=pairs.capped / attention,
        cap_tokens=pairs.cap_tokens,
        collective_s=collective_s,
        collective_token_s=collective_token_s,
        request_s=eff.request_s,
        front_request_s=FRONT_REQUEST_S / fronts if fronts else 0.0,
        front_token_s=FRONT_TOKEN_S / fronts if fronts else 0.0,
        overlap=eff.overlap,
        ubatch_tokens=int(config.knobs.get("n_ubatch", 512)) if config.engine == "llamacpp" else 1 << 30,
        launch_s=_launch_s(model) if fronts and device.kind != "cpu" else 0.0,
        graph_tokens=_graph_tokens(config, ("NONE",)),
        prompt_graph_tokens=_graph_tokens(config, ("NONE", "FULL_DECODE_ONLY")),
        pad_tokens=UNFUSED_CELLS if config.engine == "llamacpp" and config.knobs.get("flash_attn") == "off" else 1,
    )


def _launch_s(model: ModelSpec) -> float:
    """Host time of a step that is launched kernel by kernel."""
    return model.n_layers * (EAGER_LAYER_S + (EAGER_EXPERT_LAYER_S if model.experts else 0.0))


def _graph_tokens(config: EngineConfig, without: tuple[str, ...]) -> int:
    """Tokens of the largest step that vLLM replays from a graph, none in the modes ``without``."""
    if config.knobs.get("enforce_eager") is True or config.knobs.get("cudagraph_mode") in without:
        return 0
    largest = int(config.knobs.get("max_cudagraph_capture_size", 0) or 0)
    return largest or min(2 * int(config.knobs.get("max_num_seqs", GRAPH_TOKENS)), GRAPH_TOKENS)


def kv_value_bytes(config: EngineConfig) -> float:
    """Mean bytes of one cached value over K and V."""
    knobs = config.knobs
    if config.engine == "llamacpp":
        pair = [str(knobs.get(name, "f16")) for name in ("cache_type_k", "cache_type_v")]
        return sum(DTYPE_BYTES.get(name, 2.0) for name in pair) / 2
    return DTYPE_BYTES.get(str(knobs.get("kv_cache_dtype", "auto")), 2.0)


def thread_shares(device: DeviceSpec, config: EngineConfig) -> tuple[float, float]:
    """Share of a CPU's speed for a step of one token, and for a step of more; 1 and 1 on a card.

    llama.cpp takes ``n_threads`` for a single token and ``n_threads_batch`` for everything else, a batched decode step
    included (llama-context.cpp, graph_compute).
    """
    if device.kind != "cpu" or not device.cores:
        return 1.0, 1.0
    threads = int(config.knobs.get("n_threads", 0) or 0) or device.cores
    batch = int(config.knobs.get("n_threads_batch", 0) or 0) or threads
    return _share(threads, device.cores), _share(batch, device.cores)


def _share(threads: int, cores: int) -> float:
    return (threads / cores) ** SCALING if threads <= cores else 1 / OVERSUBSCRIBED
