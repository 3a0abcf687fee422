"""The datasheet roofline against hand arithmetic, and how knobs move it."""

import msgspec
import pytest

from powerband.records.config import EngineConfig
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.simulate.clock import Clock
from powerband.simulate.efficiency import CPU, GPU
from powerband.simulate.roofline import compute_terms
from powerband.simulate.step_time import FACTORS, predict_from_datasheet

VLLM = EngineConfig(engine="vllm", model="llama")
LLAMACPP = EngineConfig(engine="llamacpp", model="llama", knobs={"n_ubatch": 512})


def cpu_of(device: DeviceSpec) -> DeviceSpec:
    return DeviceSpec(
        name="cpu",
        vendor="x",
        kind="cpu",
        memory_bytes=device.memory_bytes,
        bandwidth_bytes_per_s=20e9,
        flops_per_s={"fp32": 2e11},
        source="made up for the test",
        cores=4,
    )


def test_llama_8b_weights_and_kv_by_hand(llama_8b: ModelSpec, h100: DeviceSpec) -> None:
    terms = compute_terms(llama_8b, h100, VLLM)
    # Read each step: all parameters but the input embedding (4096 x 128,256), 2 bytes each, at 3.35 TB/s x efficiency.
    read = 2 * (8_030_261_248 - 4096 * 128_256)
    assert terms.weight_s == pytest.approx(read / (3.35e12 * GPU.bandwidth), rel=1e-3)
    # KV of one token: K and V x 32 layers x 8 heads x 128 x 2 bytes = 131,072 bytes.
    assert terms.context_token_s == pytest.approx(131_072 / (3.35e12 * GPU.bandwidth), rel=1e-9)
    # Attention: 2 matmuls x 2 FLOPs x 32 heads x 128 x 32 layers = 524,288 FLOPs a pair.
    assert terms.pair_s == pytest.approx(524_288 / (989e12 * GPU.attention), rel=1e-9)


def test_tensor_parallel_divides_weights_and_adds_collectives(llama_8b: ModelSpec, h100: DeviceSpec) -> None:
    one = compute_terms(llama_8b, h100, VLLM)
    four = compute_terms(llama_8b, h100, VLLM.replace(tensor_parallel_size=4))
    sixteen = compute_terms(llama_8b, h100, VLLM.replace(tensor_parallel_size=16))
    assert four.weight_s == pytest.approx(one.weight_s / 4)
    assert four.context_token_s == pytest.approx(one.context_token_s / 4)
    assert sixteen.context_token_s == pytest.approx(one.context_token_s / 8)  # 8 KV heads: the rest are copies
    assert (one.collective_s, one.collective_token_s) == (0.0, 0.0)
    assert four.collective_s > 0
    # Ring all-reduce: 2 a layer x 32 layers x 4096 values x 2 bytes x 2 x 3/4, over 0.75 x 450 GB/s.
    assert four.collective_token_s == pytest.approx(2 * 32 * 4096 * 2 * 1.5 / 337.5e9)


def test_kv_dtype_scales_the_context_term(llama_8b: ModelSpec, h100: DeviceSpec) -> None:
    wide = compute_terms(llama_8b, h100, VLLM).context_token_s
    assert compute_terms(llama_8b, h100, VLLM.replace(kv_cache_dtype="fp8")).context_token_s == wide / 2
    q8 = LLAMACPP.replace(cache_type_k="q8_0", cache_type_v="q8_0")  # 34 bytes hold 32 values
    assert compute_terms(llama_8b, h100, q8).context_token_s == pytest.approx(wide * 34 / 64)


def test_threads_share_a_cpu_and_collapse_beyond_its_cores(llama_8b: ModelSpec, h100: DeviceSpec) -> None:
    cpu = cpu_of(h100)
    all_cores = compute_terms(llama_8b, cpu, LLAMACPP.replace(n_threads=4))
    mixed = compute_terms(llama_8b, cpu, LLAMACPP.replace(n_threads=2, n_threads_batch=4))
    # n_threads is for steps of one token only; half of the cores give 0.60 of the speed, a quarter 0.36.
    assert all_cores.single_ratio == 1.0
    assert mixed.single_ratio == pytest.approx(1 / 0.60, rel=0.01)
    assert mixed.weight_s == all_cores.weight_s
    one = compute_terms(llama_8b, cpu, LLAMACPP.replace(n_threads=1))
    assert one.weight_s == pytest.approx(all_cores.weight_s / 0.36, rel=0.01)
    assert compute_terms(llama_8b, cpu, LLAMACPP.replace(n_threads=8)).weight_s > 5 * all_cores.weight_s
    assert all_cores.weight_s > 15e9 / (20e9 * CPU.bandwidth)


def test_without_flash_attention_the_whole_view_of_the_cache_is_read(llama_8b: ModelSpec, h100: DeviceSpec) -> None:
    """The view is padded to 256 cells a sequence: 4 sequences of 100 tokens cost as 4 of 256, of 300 as of 512."""
    cpu = cpu_of(h100)
    fused, plain = (
        predict_from_datasheet(llama_8b, cpu, LLAMACPP.replace(flash_attn=value)) for value in ("auto", "off")
    )
    for context, cells in ((100, 256), (256, 256), (300, 512)):
        expected = fused.seconds(sequences=4, context_tokens=4 * cells)
        assert plain.seconds(sequences=4, context_tokens=4 * context) == pytest.approx(expected)
    assert plain.seconds(sequences=0, prefill_tokens=100) == fused.seconds(sequences=0, prefill_tokens=100)


def test_small_ubatch_reads_the_weights_more_often(llama_8b: ModelSpec, h100: DeviceSpec) -> None:
    wide = predict_from_datasheet(llama_8b, h100, LLAMACPP)
    narrow = wide.at(LLAMACPP.replace(n_ubatch=64))
    weights = FACTORS.index("weights")
    parts = {"sequences": 0, "context_tokens": 0.0, "prefill_tokens": 512, "pairs": 0.0, "sampled": 1}
    hidden = 1 - wide.terms.overlap  # compute-bound at 512 tokens in one pass
    assert wide.parts(**parts)[weights] == pytest.approx(hidden * wide.terms.weight_s)  # type: ignore[arg-type]
    assert narrow.parts(**parts)[weights] == pytest.approx(8 * wide.terms.weight_s)  # type: ignore[arg-type]


def test_seconds_grow_with_batch_context_and_prompt(llama_8b: ModelSpec, h100: DeviceSpec) -> None:
    step = predict_from_datasheet(llama_8b, h100, VLLM)
    assert step.seconds(sequences=8) < step.seconds(sequences=64) < step.seconds(sequences=64, context_tokens=64_000)
    assert step.seconds(sequences=64) < step.seconds(sequences=64, prefill_tokens=512)
    # One pass over 15 GB takes 5.5 ms at the assumed bandwidth; 64 sequences must not cost 64 times one.
    assert step.seconds(sequences=64) < 2 * step.seconds(sequences=1)


def test_kernels_launched_one_by_one_bind_where_the_card_is_quicker(llama_8b: ModelSpec, h100: DeviceSpec) -> None:
    eager = predict_from_datasheet(llama_8b, h100, VLLM.replace(enforce_eager=True))
    graphs = eager.at(VLLM)
    # 32 layers: a lone token of such a shape was seen to take 16.5 ms, with graphs 4.5.
    assert eager.seconds(sequences=1) == pytest.approx(32 * 0.53e-3)
    assert graphs.seconds(sequences=1) < 10e-3
    assert eager.seconds(sequences=1, prefill_tokens=4000) == graphs.seconds(sequences=1, prefill_tokens=4000)
    mixture = msgspec.structs.replace(llama_8b, experts=8, experts_per_token=2)
    assert predict_from_datasheet(mixture, h100, eager.config).seconds(sequences=1) == pytest.approx(32 * 1.13e-3)
    # As long however much it reads, until that takes longer; then each step reads a token more.
    assert Clock(eager).decode_s(4, 1000.0) == pytest.approx((32 * 0.53e-3, 0.0))
    assert Clock(eager).decode_s(4, 10**6) == pytest.approx(Clock(graphs).decode_s(4, 10**6))


def test_a_step_too_large_for_a_graph_takes_at_least_its_launches(llama_8b: ModelSpec, h100: DeviceSpec) -> None:
    mixture = msgspec.structs.replace(llama_8b, experts=8, experts_per_token=2, active_parameters=10**9)
    step = predict_from_datasheet(mixture, h100, VLLM)
    launches_s = 32 * (0.53e-3 + 0.6e-3)
    assert step.seconds(sequences=12, prefill_tokens=500) < launches_s  # 512 tokens are in a graph
    assert step.seconds(sequences=13, prefill_tokens=500) == pytest.approx(launches_s)
    assert step.seconds(sequences=512) < launches_s == pytest.approx(step.seconds(sequences=600))
    assert step.seconds(sequences=0, prefill_tokens=50_000) > launches_s  # the card takes longer
    for settings, decode, prompts in (
        ({"max_num_seqs": 8}, 16, 16),
        ({"max_cudagraph_capture_size": 1024}, 1024, 1024),
        ({"cudagraph_mode": "FULL_DECODE_ONLY"}, 512, 0),
        ({"cudagraph_mode": "NONE"}, 0, 0),
        ({"enforce_eager": True}, 0, 0),
    ):
        terms = step.at(VLLM.replace(**settings)).terms
        assert (terms.graph_tokens, terms.prompt_graph_tokens) == (decode, prompts)
