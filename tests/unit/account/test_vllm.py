"""vLLM's rules against what its own logs reported (field rows by their ids), and against its block arithmetic."""

import msgspec
import pytest

from powerband.account.constants import newest_vllm, parse_version, vllm_release
from powerband.account.ledger import compute_ledger
from powerband.account.rules.vllm_blocks import lay_out_blocks
from powerband.account.rules.vllm_step import Step, capture_sizes, expert_workspace, latent_expansion
from powerband.account.weights import requantised
from powerband.records.errors import RequestError
from powerband.records.memory import EngineReport
from powerband.records.model import LayerGroup, ModelSpec
from powerband.records.units import GIB
from tests.unit.account.models import (
    DEEPSEEK_V2_LITE,
    LLAMA_7B,
    LLAMA_8B,
    QWEN3_32B,
    card,
    model_of,
    vllm,
)

H100 = card(79.18)


def report(model: ModelSpec, gib: float, version: str, count: int = 1, **knobs: float) -> EngineReport:
    device = card(gib, capability="8.9" if gib < 70 else "9.0")
    return compute_ledger(model, device, vllm(**knobs), version=version, count=count, remedies=False).reported


def gib(value: float | None) -> float:
    assert value is not None
    return value / GIB


def test_qwen3_32b_on_one_h100_as_0_11_reported_it() -> None:
    """M006: weights 61.03, activation 5.64, non-torch 0.14, cache 4.45 GiB."""
    found = report(model_of(QWEN3_32B), 79.18, "0.11", max_model_len=16000, gpu_memory_utilization=0.9)
    assert gib(found.weights_bytes) == pytest.approx(61.03, rel=0.001)
    assert gib(found.activation_bytes) == pytest.approx(5.64, rel=0.005)
    assert gib(found.kv_cache_bytes) == pytest.approx(4.45, rel=0.02)


def test_qwen3_32b_on_two_h100_as_0_11_reported_it() -> None:
    """M007: 30.59 GiB of weights a card, cache 34.49 GiB a card."""
    found = report(model_of(QWEN3_32B), 79.18, "0.11", 2, max_model_len=16000, gpu_memory_utilization=0.9)
    assert gib(found.weights_bytes) == pytest.approx(30.59, rel=0.005)
    assert gib(found.kv_cache_bytes) == pytest.approx(34.49, rel=0.005)


def test_llama_70b_fp8_on_two_h100_as_0_11_reported_it() -> None:
    """M003: 33.88 GiB of weights a card, activation 4.84, cache 32.0 GiB."""
    shape = {**LLAMA_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    model = requantised(model_of(shape, num_attention_heads=64), "fp8")
    found = report(model, 79.18, "0.11", 2, max_model_len=16000, gpu_memory_utilization=0.9)
    assert gib(found.weights_bytes) == pytest.approx(33.88, rel=0.001)
    assert gib(found.activation_bytes) == pytest.approx(4.84, rel=0.005)
    assert gib(found.kv_cache_bytes) == pytest.approx(32.0, rel=0.005)


def test_llama_8b_in_v0_with_chunked_prefill_as_it_reported() -> None:
    """M058: 22.07 GiB at 0.9, 131072 tokens: weights 14.99, activation 0.22, cache 4.6 GiB, 2356 blocks of 16."""
    found = report(model_of(LLAMA_8B), 22.07, "0.6", max_model_len=131072, gpu_memory_utilization=0.9)
    assert gib(found.budget_bytes) == pytest.approx(19.86, abs=0.005)
    assert gib(found.weights_bytes) == pytest.approx(14.99, abs=0.005)
    assert gib(found.activation_bytes) == pytest.approx(0.22, abs=0.01)
    assert gib(found.kv_cache_bytes) == pytest.approx(4.6, rel=0.02)
    assert found.kv_tokens == pytest.approx(2356 * 16, rel=0.02)


def test_sampling_dominates_the_step_of_a_small_card_in_v0() -> None:
    """M027: a 7B with a vocabulary of 152064, 4096 tokens, 256 rows: the step's peak is 1.42 GiB."""
    shape = {**LLAMA_7B, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "vocab_size": 152064}
    model = model_of(shape, num_attention_heads=28, num_key_value_heads=4, model_type="qwen2")
    found = report(model, 8.0, "0.7", max_model_len=4096, gpu_memory_utilization=0.7)
    assert gib(found.activation_bytes) == pytest.approx(1.42, abs=0.01)


def test_the_budget_is_what_the_lines_share() -> None:
    """Weights, activation and non-torch inside the budget, the rest in whole blocks of 16 tokens."""
    model = model_of(LLAMA_7B)
    found = report(model, 79.18, "0.26.0", max_model_len=4096)
    inside = gib(found.weights_bytes) + gib(found.activation_bytes) + gib(found.non_torch_bytes)
    block = 16 * 512 * 1024
    left = round(0.92 * 79.18 * GIB) - inside * GIB
    assert found.kv_cache_bytes == pytest.approx(left, abs=2)
    assert found.kv_tokens == gib(found.kv_cache_bytes) * GIB // block * 16


def test_graphs_are_inside_the_budget_of_the_first_runner_alone() -> None:
    moe = model_of({**QWEN3_32B, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 512, "architectures": ["Qwen3MoeForCausalLM"]})  # fmt: skip
    for model, inside in ((moe, True), (model_of(LLAMA_7B), False)):
        found = report(model, 139.8, "0.26.0")
        lines = (found.weights_bytes, found.activation_bytes, found.non_torch_bytes, found.kv_cache_bytes)
        rest = gib(found.budget_bytes) - sum(gib(line) for line in lines)
        assert (rest > 0.05) is inside


def test_latent_attention_expands_64k_tokens_of_context() -> None:
    """DeepSeek-V2-Lite: 65536 tokens x 16 heads x (128 + 128) values of two bytes are 512 MiB."""
    model = model_of(DEEPSEEK_V2_LITE)
    step = Step(tokens=8192, seqs=1024, tp=1, limit=163840, block_tokens=16, hopper=True)
    assert latent_expansion(model, step) == 512 * 1024**2
    assert latent_expansion(model, msgspec.structs.replace(step, tp=4)) == 128 * 1024**2
    short = Step(tokens=2048, seqs=64, tp=1, limit=4096, block_tokens=16, hopper=True)
    assert latent_expansion(model, short) == 8 * 4096 * 16 * 256 * 2


def test_expert_workspace_holds_both_buffers_of_the_fused_kernel() -> None:
    """8192 tokens x 6 experts: max(1408, 2048) values in one buffer, max(2 x 1408, 2048) in the other."""
    step = Step(tokens=8192, seqs=1024, tp=1, limit=4096, block_tokens=16, hopper=True)
    assert expert_workspace(model_of(DEEPSEEK_V2_LITE), step) == 8192 * 6 * (2048 + 2816) * 2
    assert expert_workspace(model_of(LLAMA_7B), step) == 0


def test_captured_sizes_are_vllms_default_list() -> None:
    sizes = capture_sizes(8192, 1024)
    assert (len(sizes), sizes[:5], sizes[-1]) == (51, [1, 2, 4, 8, 16], 512)
    assert capture_sizes(8192, 4) == [1, 2, 4, 8]
    assert capture_sizes(6, 1024) == [1, 2, 4, 6]


def layers(*groups: LayerGroup) -> ModelSpec:
    return msgspec.structs.replace(model_of(LLAMA_7B), layers=groups)


def test_equal_layers_share_one_pool() -> None:
    model = layers(LayerGroup(count=36, kind="attention", kv_heads=8, head_dim=128))
    pool = lay_out_blocks(model, block_tokens=16, dtype_bytes=2, tp=1, limit=40960, in_flight=16384)
    assert pool is not None
    assert (pool.block_bytes, pool.blocks_per_request, pool.groups) == (36 * 16 * 8 * 256 * 2, 2560, 1)


def test_windows_and_full_layers_form_groups_of_equal_length() -> None:
    """gpt-oss-20b: 12 full and 12 windowed layers; two groups share twelve tensors."""
    full = LayerGroup(count=12, kind="attention", kv_heads=8, head_dim=64)
    window = LayerGroup(count=12, kind="sliding", kv_heads=8, head_dim=64, window_tokens=128)
    pool = lay_out_blocks(layers(full, window), block_tokens=16, dtype_bytes=2, tp=1, limit=4096, in_flight=2048)
    assert pool is not None
    assert pool.block_bytes == 12 * 16 * 8 * 128 * 2
    # 256 blocks for the full layers, and 127 tokens of window beside 2048 in flight for the others, one block more
    assert pool.blocks_per_request == 256 + (-(-(127 + 2048) // 16) + 1)


def test_five_windowed_layers_to_a_full_one_make_six_groups() -> None:
    """Gemma-3-27B: 10 full and 52 windowed layers: groups of 10, so 1 + 6 of them."""
    full = LayerGroup(count=10, kind="attention", kv_heads=16, head_dim=128)
    window = LayerGroup(count=52, kind="sliding", kv_heads=16, head_dim=128, window_tokens=1024)
    pool = lay_out_blocks(layers(full, window), block_tokens=16, dtype_bytes=2, tp=1, limit=8192, in_flight=4096)
    assert pool is not None
    assert pool.groups == 7
    assert pool.blocks_per_request == 512 + 6 * (-(-(1023 + 4096) // 16) + 1)


def test_recurrent_layers_stretch_the_block_until_a_page_holds_a_state() -> None:
    """A state of 1,000,000 bytes against 2048 bytes a token: 489 tokens, in steps of 16: 496."""
    full = LayerGroup(count=10, kind="attention", kv_heads=2, head_dim=256)
    state = LayerGroup(count=30, kind="recurrent", state_values=250_000, state_bytes_per_value=4)
    pool = lay_out_blocks(layers(full, state), block_tokens=16, dtype_bytes=2, tp=1, limit=4960, in_flight=0)
    assert pool is not None
    assert pool.block_tokens == 496
    assert pool.block_bytes == 10 * 496 * 2048
    assert pool.blocks_per_request == 10 + 3  # ten blocks of tokens, and one state for each of three groups


def test_a_model_without_a_cache_has_no_pool() -> None:
    model = layers(LayerGroup(count=4, kind="none"))
    assert lay_out_blocks(model, block_tokens=16, dtype_bytes=2, tp=1, limit=10, in_flight=1) is None


@pytest.mark.parametrize(("version", "since"), [("0.5.4", "0.0"), ("v0.11.0", "0.8"), ("0.26.0rc1", "0.26")])
def test_a_version_takes_the_newest_entry_before_it(version: str, since: str) -> None:
    assert vllm_release(version, second_runner=False).since == since


def test_versions_compare_as_numbers() -> None:
    assert parse_version("0.8.5.post1") == (0, 8, 5)
    assert newest_vllm() == "0.26"
    with pytest.raises(RequestError, match="cannot read engine version"):
        parse_version("main")


def test_a_pool_that_was_asked_for_is_taken_as_asked() -> None:
    model = model_of(LLAMA_7B)
    asked = compute_ledger(model, card(80.0), vllm(kv_cache_memory_bytes=8 * GIB), remedies=False)
    assert asked.bytes_of("kv_cache") == 8 * GIB
    assert asked.capacity.kv_tokens == 16384
    blocks = compute_ledger(model, card(80.0), vllm(num_gpu_blocks_override=20), remedies=False)
    assert blocks.capacity.kv_tokens == 320


def test_offloaded_weights_leave_room_for_the_cache() -> None:
    model = model_of(LLAMA_7B)
    plain, half = (compute_ledger(model, card(24.0), vllm(cpu_offload_gb=gib), remedies=False) for gib in (0, 6))
    assert plain.bytes_of("weights") - half.bytes_of("weights") == 6 * GIB
    assert half.capacity.kv_tokens - plain.capacity.kv_tokens == 6 * GIB // (512 * 1024)


def test_on_a_host_there_is_no_context_and_blocks_hold_128_tokens() -> None:
    host = msgspec.structs.replace(card(64.0), kind="cpu", name="cpu")
    found = compute_ledger(model_of(LLAMA_7B), host, vllm(), remedies=False)
    assert found.bytes_of("cuda_graphs") == 0
    assert found.capacity.kv_tokens % 128 == 0
    assert found.fits


def test_sparse_latents_in_fp8_take_656_bytes_a_layer() -> None:
    """DeepSeek V3.2's own cache format: 656 bytes for 576 values."""
    found = compute_ledger(model_of(DEEPSEEK_V2_LITE), card(80.0), vllm(kv_cache_dtype="fp8_ds_mla"), remedies=False)
    assert found.capacity.kv_bytes_per_token == 27 * 656
