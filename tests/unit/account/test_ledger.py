"""Laws of the ledger: lines sum to the device, more never takes less, splitting divides; and the seeds' examples."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.account.ledger import compute_ledger
from powerband.account.rules import RULES
from powerband.account.weights import part_bytes, rank_weight_bytes, requantised, stage_layers
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.memory import MemoryLedger
from powerband.records.units import GIB
from tests.unit.account.models import DEEPSEEK_V2_LITE, LLAMA_7B, LLAMA_8B, LLAMA_13B, card, model_of, vllm

SEVEN_B, THIRTEEN_B, EIGHT_B = model_of(LLAMA_7B), model_of(LLAMA_13B), model_of(LLAMA_8B)


def ledger(config: EngineConfig, gib: float = 80.0, count: int = 1) -> MemoryLedger:
    return compute_ledger(SEVEN_B, card(gib), config, remedies=False, count=count)


@settings(max_examples=80, deadline=None)
@given(
    engine=st.sampled_from(sorted(RULES)),
    gib=st.floats(4, 300),
    count=st.sampled_from([1, 2, 4, 8]),
    model=st.sampled_from([SEVEN_B, THIRTEEN_B, EIGHT_B, model_of(DEEPSEEK_V2_LITE)]),
)
def test_lines_sum_to_the_device(engine: str, gib: float, count: int, model: object) -> None:
    config = EngineConfig(engine=engine, model="m")
    found = compute_ledger(model, card(gib), config, count=count, remedies=False)  # type: ignore[arg-type]
    assert sum(line.bytes for line in found.lines) == found.memory_bytes == round(gib * GIB)
    assert [line.name for line in found.lines][-1] == "unused"
    for line in found.lines:
        if line.name not in ("unused", "kv_cache"):
            assert line.interval_bytes.low <= line.bytes <= line.interval_bytes.high
        assert line.why
    assert found.fits == (found.shortage == "")


def kv(**knobs: int) -> int:
    return ledger(vllm(**knobs)).bytes_of("kv_cache")


@settings(max_examples=40, deadline=None)
@given(small=st.integers(64, 4096), more=st.integers(0, 20000))
def test_a_larger_step_never_leaves_more_cache(small: int, more: int) -> None:
    assert kv(max_num_batched_tokens=small + more) <= kv(max_num_batched_tokens=small)


@settings(max_examples=40, deadline=None)
@given(small=st.integers(1, 1024), more=st.integers(0, 4096))
def test_more_sequences_never_leave_more_cache(small: int, more: int) -> None:
    assert kv(max_num_seqs=small + more) <= kv(max_num_seqs=small)


@settings(max_examples=30, deadline=None)
@given(cells=st.integers(256, 30000), more=st.integers(0, 30000), slots=st.sampled_from([1, 2, 4]))
def test_a_longer_context_never_takes_less_in_llamacpp(cells: int, more: int, slots: int) -> None:
    def cache(n_ctx: int) -> int:
        config = EngineConfig(engine="llamacpp", model="m", knobs={"n_ctx": n_ctx, "n_parallel": slots})
        return ledger(config).bytes_of("kv_cache")

    assert cache(cells + more) >= cache(cells)


@settings(max_examples=20, deadline=None)
@given(layers=st.integers(1, 60))
def test_more_layers_take_more(layers: int) -> None:
    one, two = (model_of(LLAMA_7B, num_hidden_layers=count) for count in (layers, layers + 1))
    first, second = (compute_ledger(model, card(80), vllm(), remedies=False) for model in (one, two))
    assert second.bytes_of("weights") > first.bytes_of("weights")
    assert second.capacity.kv_bytes_per_token > first.capacity.kv_bytes_per_token
    assert second.capacity.kv_tokens < first.capacity.kv_tokens


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallelism_divides_matrices_and_copies_the_rest(tp: int) -> None:
    whole = {part.role: part_bytes(part, EIGHT_B, 1) for part in EIGHT_B.parts if part.layer in (0, -1)}
    split = {part.role: part_bytes(part, EIGHT_B, tp) for part in EIGHT_B.parts if part.layer in (0, -1)}
    for role in ("attention", "mlp", "embedding", "head"):
        assert split[role] == whole[role] / tp
    assert split["norm"] == whole["norm"]


def test_kv_projections_replicate_once_heads_run_out() -> None:
    """8 KV heads over 16 ranks: each rank holds one head, an eighth of the projection."""
    keys = next(part for part in EIGHT_B.parts if part.split == "kv_heads")
    assert part_bytes(keys, EIGHT_B, 8) == part_bytes(keys, EIGHT_B, 16) == keys.bytes / 8


def test_latent_caches_do_not_shrink_with_tensor_parallelism() -> None:
    model = model_of(DEEPSEEK_V2_LITE)
    one, four = (compute_ledger(model, card(80), vllm(), count=count, remedies=False) for count in (1, 4))
    assert one.capacity.kv_bytes_per_token == four.capacity.kv_bytes_per_token == 27 * 576 * 2


def test_expert_parallelism_keeps_whole_experts() -> None:
    model = model_of(DEEPSEEK_V2_LITE)
    experts = next(part for part in model.parts if part.role == "experts")
    assert part_bytes(experts, model, 3) == experts.bytes / 3
    assert part_bytes(experts, model, 3, expert_parallel=True) == experts.bytes * 22 / 64


def test_stages_share_the_layers_and_the_ends_hold_embedding_and_head() -> None:
    assert [stage_layers(10, stage, 4) for stage in range(4)] == [(0, 2), (2, 5), (5, 8), (8, 10)]
    assert [stage_layers(32, stage, 2) for stage in range(2)] == [(0, 16), (16, 32)]
    half = rank_weight_bytes(SEVEN_B, pp=2)
    per_layer = 2 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
    assert half == 16 * per_layer + 2 * 32000 * 4096 + 2 * 4096  # the last stage: half the layers, a norm and the head


def test_the_seeds_table_for_2048_tokens_and_eight_sequences() -> None:
    """7B: weights about 14 GB, cache 8 GiB; 13B: about 26 GB, cache 12.5 GiB. A 24 GB card does not hold the 7B."""
    for model, weights_gb, cache_gib in ((SEVEN_B, 13.5, 8.0), (THIRTEEN_B, 26.0, 12.5)):
        assert model.weight_bytes / 1e9 == pytest.approx(weights_gb, rel=0.01)
        config = EngineConfig(engine="transformers", model="m", knobs={"max_length": 2048, "batch_size": 8})
        found = compute_ledger(model, card(80), config, remedies=False)
        assert found.bytes_of("kv_cache") == cache_gib * GIB
    config = EngineConfig(engine="transformers", model="m", knobs={"max_length": 2048, "batch_size": 8})
    tight = compute_ledger(SEVEN_B, card(23.6), config, remedies=False)
    worst = sum(line.interval_bytes.high for line in tight.lines if line.name != "unused")
    assert worst > tight.memory_bytes  # at the upper bounds, as the seeds count it


def test_awq_shrinks_seven_b_to_a_quarter() -> None:
    linear = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    awq = requantised(SEVEN_B, "awq")
    assert awq.weight_bytes == SEVEN_B.weight_bytes - 2 * linear + linear // 2 + linear // 128 * 5 // 2
    assert awq.weight_bytes / 1e9 == pytest.approx(3.9, abs=0.1)


def test_what_does_not_fit_says_by_how_much() -> None:
    small = ledger(vllm(), gib=8.0)
    assert not small.fits
    assert "more than the device's 8.00 GiB" in small.shortage
    assert small.bytes_of("unused") < 0
    short = compute_ledger(EIGHT_B, card(22.0), vllm(), remedies=False)
    assert not short.fits
    assert "one sequence of 131,072 does not fit" in short.shortage


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (vllm(gpu_memory_utilization=1.5), "not a share of memory"),
        (vllm(max_num_seqs=0), "too small"),
        (vllm(max_model_len=2.5), "not a whole number"),
        (vllm(kv_cache_dtype="fp9"), "unknown value for knob kv_cache_dtype"),
        (vllm(quantization="awqq"), "unknown weight format"),
        (EngineConfig(engine="vlm", model="m"), "unknown engine"),
    ],
)
def test_settings_that_cannot_be_are_refused(config: EngineConfig, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ledger(config)


def test_a_count_that_cannot_be_is_refused() -> None:
    with pytest.raises(RequestError, match="count 0"):
        ledger(vllm(), count=0)


def test_sglang_keeps_the_rest_of_its_fraction_free() -> None:
    """M069: 15.54 GiB of weights a rank and 6.09 GiB free afterwards: at 0.85 the cache takes 2.84 GiB."""
    free_before = 15.54 + 6.09
    fraction = 0.85
    assert 6.09 - (1 - fraction) * free_before == pytest.approx(2.84, abs=0.01)
    config = EngineConfig(engine="sglang", model="m", knobs={"mem_fraction_static": fraction})
    found = ledger(config, gib=40.0)
    context = 524288000 / GIB
    inside = (found.reported.weights_bytes or 0) + (found.reported.non_torch_bytes or 0)
    expected = fraction * (40.0 - context) * GIB - inside
    assert found.bytes_of("kv_cache") == pytest.approx(expected, abs=512 * 1024)
