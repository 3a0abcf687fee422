"""Names of methods, shapes, GGUF sizes and plans."""

import msgspec
import pytest

from powerband.probes.device import read_device
from powerband.quantize.compatibility import Question, check_support
from powerband.quantize.gguf_mix import gguf_bytes
from powerband.quantize.methods import METHODS, parse_method, planned_methods
from powerband.quantize.plan import Setting, ask, judge_risk, make_plan
from powerband.quantize.resized import in_format, stored_format
from powerband.quantize.shapes import group_size, odd_size
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.model import ModelSpec
from powerband.records.workload import RequestSpec, Workload
from tests.support.shapes import llama, llama_8b, smollm


@pytest.mark.parametrize(
    ("kind", "gib"),
    [("q2_k", 2.95), ("q4_k_s", 4.36), ("q4_k_m", 4.58), ("q5_k_s", 5.21), ("q5_k_m", 5.33), ("q6_k", 6.14),
     ("q8_0", 7.95), ("q3_k_l", 4.02), ("q3_k_s", 3.41), ("f16", 14.96)],
)  # fmt: skip
def test_gguf_sizes_of_llama_8b_are_those_llama_cpp_publishes(kind: str, gib: float) -> None:
    """llama.cpp tools/quantize/README.md, Llama-3.1-8B; to the rounding of its table."""
    assert gguf_bytes(llama_8b(), kind) / 2**30 == pytest.approx(gib, abs=0.012)


def test_rows_that_do_not_divide_fall_back_to_wider_types() -> None:
    """576 is no multiple of 256: q, k, v, o, gate and up of Q4_K_M become q5_0 (or q8_0 for q6_k), down keeps K."""
    spec = smollm()
    assert "576" in odd_size(spec, "k_quant")
    one_layer = 30 * (2 * 576 * 576 + 2 * 576 * 192 + 2 * 576 * 1536)
    assert gguf_bytes(spec, "q4_k_m") > one_layer * 22 / 32 + 49152 * 576 * 34 / 32


def test_groups_follow_the_narrowest_layer() -> None:
    assert group_size(llama_8b()) == 128
    assert group_size(smollm()) == 64  # 576 = 9 * 64
    assert group_size(llama(layers=1, hidden=100, heads=4, kv_heads=4, intermediate=200, vocab=10, tied=True)) is None


@pytest.mark.parametrize(
    ("text", "tool", "kind"),
    [("gptq", "gptqmodel", "gptq"), ("awq", "llm-compressor", "int4"), ("GGUF:Q4_K_M", "llama.cpp", "gguf:q4_k_m"),
     ("gptq:group=64,desc_act=true", "gptqmodel", "gptq")],
)  # fmt: skip
def test_methods_are_read(text: str, tool: str, kind: str) -> None:
    job = parse_method(text)
    assert (job.tool.name, job.format) == (tool, kind)


@pytest.mark.parametrize(
    ("text", "tool", "hint"),
    [("gptqq", None, "gptq"), ("gguf:q4_k_x", None, "q4_k"), ("gptq:groop=1", None, "group"),
     ("gptq:group=x", None, "whole number"), ("fp8", "torchao", "llm-compressor"), ("", None, "accepted")],
)  # fmt: skip
def test_what_is_not_known_is_refused_with_what_is_near(text: str, tool: str | None, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_method(text, tool)
    assert hint in caught.value.hint


def test_every_method_writes_formats_that_the_table_knows() -> None:
    device = read_device("h100-80gb")
    for name in planned_methods():
        job = parse_method(name)
        assert check_support(Question(format=job.format, engine="vllm", device=device)).answer
    assert all(method.tools for method in METHODS.values())


def setting(model: ModelSpec, engine: str, device: str, **more: object) -> Setting:
    config = EngineConfig(engine=engine, model="m", knobs=more.pop("knobs", {}))  # type: ignore[arg-type]
    return Setting(model=model, device=read_device(device), config=config, **more)  # type: ignore[arg-type]


TRAFFIC = Workload(
    requests=tuple(RequestSpec(offset_ns=0, input_tokens=512, output_tokens=64) for _ in range(32)), source="test",
    concurrency=16,
)  # fmt: skip


def test_a_plan_puts_what_runs_first_and_says_why_the_rest_cannot() -> None:
    plan = make_plan(setting(llama_8b(), "vllm", "a100-80gb", traffic=TRAFFIC), ["mlx4", "fp8", "awq", "w8a8"])
    assert [row.support.answer for row in plan.rows] == ["runs", "runs", "slow", "refused"]
    assert plan.rows[0].method == "w8a8"  # 8 bits that run, before 4
    assert plan.base is not None
    awq = next(row for row in plan.rows if row.method == "awq")
    assert awq.forecast is not None
    # 6.98e9 linear parameters at 4 bits and a 2-byte scale for 128, two 16-bit tables of 128256 x 4096
    linear = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    expected = linear * (0.5 + 2 / 128) + 2 * 2 * 128256 * 4096
    assert awq.forecast.weight_bytes == pytest.approx(expected, rel=0.002)


def test_what_does_not_fit_comes_after_what_does() -> None:
    """Some 32e9 weights: a byte each is more than the 24 GB of an L4, 2.6 bits (llama.cpp's Q2_K) are 10 GB."""
    shape = llama(layers=64, hidden=5120, heads=40, kv_heads=8, intermediate=25600, vocab=151936, tied=False)
    knobs = {"max_model_len": 2048, "gpu_memory_utilization": 0.8}
    plan = make_plan(setting(shape, "vllm", "l4", knobs=knobs), ["mlx4", "w8a8", "gguf:q2_k"])
    assert [row.method for row in plan.rows] == ["gguf:q2_k", "w8a8", "mlx4"]


def test_slow_kernels_are_predicted_slow() -> None:
    """FP8 without FP8 arithmetic is worse than 16 bits at a full batch, as an A100 showed (D016)."""
    plan = make_plan(setting(llama_8b(), "vllm", "a100-80gb", traffic=TRAFFIC), ["fp8", "w8a8"])
    by_name = {row.method: row.forecast for row in plan.rows}
    fp8, w8a8 = by_name["fp8"], by_name["w8a8"]
    assert fp8 is not None
    assert w8a8 is not None
    assert fp8.prefill_ratio is not None
    assert w8a8.prefill_ratio is not None
    assert fp8.prefill_ratio > 1.1 > 0.9 > w8a8.prefill_ratio


def test_w8a8_gains_and_w4a16_loses_on_two_cores_as_was_measured() -> None:
    """vLLM on a CPU with SmolLM2-135M at 8 requests: W8A8 52 % faster than bf16, W4A16 23 % slower."""
    traffic = Workload(requests=TRAFFIC.requests, source="test", concurrency=8)
    plan = make_plan(setting(smollm(), "vllm", "cpu", traffic=traffic, knobs={"max_model_len": 2048}), ["w8a8", "gptq"])
    speeds = {row.method: row.forecast.output_tokens_per_s for row in plan.rows if row.forecast is not None}
    assert plan.base is not None
    assert plan.base.output_tokens_per_s is not None
    w8a8, gptq = speeds["w8a8"], speeds["gptq"]
    assert w8a8 is not None
    assert gptq is not None
    assert w8a8 > 1.2 * plan.base.output_tokens_per_s
    assert gptq < 0.95 * plan.base.output_tokens_per_s


@pytest.mark.parametrize(("in_flight", "requests", "measured"), [(1, 8, 279 / 212), (256, 512, 6044 / 6334)])
def test_four_bits_on_hopper_gain_alone_and_lose_in_a_full_batch_as_was_measured(
    in_flight: int, requests: int, measured: float
) -> None:
    """A 7B in vLLM 0.26 on an H200, 512 tokens in and 128 out (docs/reference/quantisation.md)."""
    model = llama(layers=32, hidden=4096, heads=32, kv_heads=8, intermediate=14336, vocab=32000, tied=False)
    each = RequestSpec(offset_ns=0, input_tokens=512, output_tokens=128)
    traffic = Workload(requests=(each,) * requests, source="test", concurrency=in_flight)
    plan = make_plan(setting(model, "vllm", "h200", traffic=traffic, knobs={"max_num_seqs": 256}), ["gptq"])
    found, base = plan.rows[0].forecast, plan.base
    assert plan.rows[0].support.kernel == "machete"
    assert found is not None
    assert base is not None
    assert found.output_tokens_per_s is not None
    assert base.output_tokens_per_s is not None
    assert found.output_tokens_per_s / base.output_tokens_per_s == pytest.approx(measured, abs=0.07)


def test_a_checkpoint_that_is_quantised_already_is_no_source() -> None:
    quantised = in_format(llama_8b(), "gptq")
    where = setting(quantised, "vllm", "h100-80gb")
    assert ask(where, parse_method("awq")).answer == "refused"
    assert "original weights" in ask(where, parse_method("gguf:q8_0")).why


def test_a_group_that_does_not_divide_is_refused_with_one_that_does() -> None:
    found = ask(setting(smollm(), "vllm", "h100-80gb"), parse_method("gptq:group=128"))
    assert found.answer == "refused"
    assert "group=64" in found.why


def test_risk_follows_the_task() -> None:
    four = parse_method("awq")
    assert judge_risk(setting(llama_8b(), "vllm", "h100-80gb", task="chat"), four)[0] == "medium"
    assert judge_risk(setting(llama_8b(), "vllm", "h100-80gb", task="code"), four)[0] == "high"
    assert judge_risk(setting(llama_8b(), "vllm", "h100-80gb", task="code"), parse_method("fp8"))[0] == "low"
    assert judge_risk(setting(llama_8b(), "llamacpp", "cpu"), parse_method("gguf:q2_k"))[0] == "high"


def test_stored_formats_are_named_as_the_table_names_them() -> None:
    assert stored_format(llama_8b()) == "none"
    assert stored_format(_stored("awq", "awq-int4")) == "awq"
    assert stored_format(_stored("gguf", "q4_k")) == "gguf:q4_k_m"
    assert stored_format(_stored("compressed-tensors", "int8")) == "int8-w8a8"


def _stored(quantisation: str, dtype: str) -> ModelSpec:
    return msgspec.structs.replace(llama_8b(), quantisation=quantisation, weight_dtype=dtype)
