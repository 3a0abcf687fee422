"""What a load gave: decode steps, bytes and the promise, against arithmetic by hand."""

import msgspec
import pytest

from powerband.ladder.judge import (
    compute_use,
    holds,
    judged,
    opening,
    read_decoding,
    steady_tokens_per_s,
    step_weight_bytes,
)
from powerband.records.config import EngineConfig
from powerband.records.hardware import DeviceSpec
from powerband.records.model import LayerGroup, ModelSpec, WeightPart
from powerband.records.request import RequestStatus, RequestTrace
from powerband.records.run import Run
from powerband.records.sample import DeviceSample
from powerband.records.slo import Slo
from powerband.records.value import Missing
from powerband.records.workload import Workload

S = 1_000_000_000
SLO = Slo(ttft_s=0.5, tpot_s=0.05)


def trace(
    index: int,
    first_s: float,
    gap_s: float,
    tokens: int,
    *,
    sched_s: float = 0.0,
    status: RequestStatus = "ok",
    inputs: int = 10,
) -> RequestTrace:
    times = tuple(round((first_s + gap_s * i) * S) for i in range(tokens))
    return RequestTrace(
        index=index,
        status=status,
        input_tokens=inputs,
        output_tokens_asked=tokens,
        t_sched_ns=round(sched_s * S),
        t_end_ns=times[-1] if status == "ok" else None,
        t_chunks_ns=times,
        chunk_tokens=(1,) * tokens,
    )


def run_of(*traces: RequestTrace, end_s: float) -> Run:
    return Run(
        run_id="r",
        basis="measured",
        config=EngineConfig(engine="fake", model="m"),
        effective=Missing(missing="none"),
        workload=Workload(requests=(), source="test", concurrency=2),
        traces=traces,
        end_ns=round(end_s * S),
    )


def part(role: str, count: int, dtype: str = "bf16") -> WeightPart:
    return WeightPart(role=role, layer=0, parameters=count // 2, bytes=count, dtype=dtype, split="tensor")  # type: ignore[arg-type]


def model(*parts: WeightPart, **changes: object) -> ModelSpec:
    spec = ModelSpec(
        name="m",
        architecture="llama",
        layers=(LayerGroup(count=2, kind="attention", kv_heads=4, head_dim=8),),
        hidden=32,
        heads=4,
        vocab=100,
        parameters=sum(p.parameters for p in parts),
        active_parameters=sum(p.parameters for p in parts),
        weight_bytes=sum(p.bytes for p in parts),
        weight_dtype="bf16",
        basis="computed",
        context_tokens=64,
        parts=parts,
    )
    return msgspec.structs.replace(spec, **changes)


def test_two_streams_side_by_side_and_one_after() -> None:
    """Two of 5 tokens from 1.0 to 1.4 s, one of 3 from 2.0 to 2.2 s: 1.0 s of decoding in 0.6 s, 10 tokens after the
    first of each, so 1.667 at once and 6 steps."""
    found = read_decoding((trace(0, 1.0, 0.1, 5), trace(1, 1.0, 0.1, 5), trace(2, 2.0, 0.1, 3)), end_ns=4 * S)
    assert found is not None
    assert found.batch == pytest.approx(1.0 / 0.6)
    assert found.steps == pytest.approx(6.0)
    # Each step attends to the prompt, the tokens before and itself: 4 x 11 + 0+1+2+3 twice, 2 x 11 + 0+1 once.
    assert found.context_tokens == pytest.approx(2 * (44 + 6) + 23)
    assert found.window_s == pytest.approx(4.0)


def test_bandwidth_of_one_stream() -> None:
    """10 steps a second of 1,000 bytes of weights and 2 x 2 x 4 x 8 x 2 = 256 bytes a token of context."""
    one = run_of(trace(0, 0.0, 0.1, 11), end_s=1.0)
    device = DeviceSpec(
        name="d", vendor="v", kind="gpu", memory_bytes=1, bandwidth_bytes_per_s=1e6, flops_per_s={}, source="test"
    )
    use = compute_use(one, model(part("mlp", 900), part("head", 100)), device, kv_value_bytes=2.0)
    context = 10 * 11 + 45
    assert use.bandwidth_ratio == pytest.approx((10 * 1000 + context * 256) / 1e6)
    assert use.mean_batch == pytest.approx(1.0)
    assert isinstance(use.busy_ratio, Missing)


def test_the_drivers_readings_are_means_and_the_memory_is_the_most() -> None:
    samples = tuple(
        DeviceSample(t_ns=t * S // 4, index=0, name="card", busy_ratio=busy, memory_used_bytes=used)
        for t, (busy, used) in enumerate([(0.2, 10.0), (0.4, 30.0), (0.6, 20.0)])
    )
    run = msgspec.structs.replace(run_of(trace(0, 0.0, 0.1, 11), end_s=1.0), device_samples=samples)
    use = compute_use(run, None, None, kv_value_bytes=2.0)
    assert use.busy_ratio == pytest.approx(0.4)
    assert use.memory_bytes == 30.0
    assert isinstance(use.bandwidth_ratio, Missing)


def test_an_embedding_is_read_only_where_it_is_the_head() -> None:
    parts = (part("embedding", 400), part("mlp", 600))
    assert step_weight_bytes(model(*parts), 1) == 600
    assert step_weight_bytes(model(*parts, tied=True), 1) == 1000


def test_a_step_reads_the_experts_that_its_tokens_hit() -> None:
    """8 experts, 2 each token: one token reads a quarter, two read 1 - (3/4)^2 = 7/16 on average."""
    moe = model(part("attention", 200), part("experts", 1600), experts=8, experts_per_token=2)
    assert step_weight_bytes(moe, 1) == pytest.approx(200 + 400)
    assert step_weight_bytes(moe, 2) == pytest.approx(200 + 700)


def test_cut_off_requests_count_only_once_they_missed_the_promise() -> None:
    """At 10 s: one waits for 0.2 s (not judged), one for 3 s (missed), one is decoding (not judged)."""
    waiting = trace(1, 0.0, 0.0, 0, sched_s=9.8, status="dropped")
    late = trace(2, 0.0, 0.0, 0, sched_s=7.0, status="dropped")
    decoding = trace(3, 9.7, 0.05, 3, sched_s=9.5, status="dropped")
    run = run_of(trace(0, 0.1, 0.01, 5), waiting, late, decoding, end_s=10.0)
    assert [kept.index for kept in judged(run, SLO).traces] == [0, 2]
    assert [kept.index for kept in judged(run, None).traces] == [0]


def test_the_burst_that_fills_the_loop_is_not_judged_once_the_loop_has_turned() -> None:
    """Two in flight: the first two came at once and waited; two more ended after them."""
    burst = [trace(0, 0.9, 0.01, 5), trace(1, 0.9, 0.01, 5)]
    later = [trace(2, 1.0, 0.01, 5, sched_s=0.95), trace(3, 1.1, 0.01, 5, sched_s=0.96)]
    assert opening(run_of(*burst, later[0], end_s=2.0)) == frozenset(), "one answer is not yet a turn"
    whole = run_of(*burst, *later, end_s=2.0)
    assert [kept.index for kept in judged(whole, SLO).traces] == [2, 3]
    # From the first end at 0.94 s to 2.0 s: all ten tokens of the later two, none of the burst's.
    assert steady_tokens_per_s(whole) == pytest.approx(10 / (2.0 - 0.94))


def test_tokens_of_unfinished_answers_count_where_the_loop_did_not_turn() -> None:
    half = trace(1, 1.0, 0.1, 4, sched_s=0.5, status="dropped")
    alone = msgspec.structs.replace(
        run_of(trace(0, 0.1, 0.1, 4), half, end_s=2.0), workload=Workload(requests=(), source="t", concurrency=1)
    )
    assert steady_tokens_per_s(alone) == pytest.approx(8 / 2.0)


def test_the_promise_holds_where_its_target_is_reached() -> None:
    good = [trace(i, 0.1, 0.01, 5) for i in range(95)]
    slow = [trace(100 + i, 0.9, 0.01, 5) for i in range(3)]
    lost = [trace(200 + i, 0.0, 0.0, 0, status="dropped") for i in range(3)]
    assert holds(run_of(*good, end_s=1.0).metrics(None), None) is None
    assert holds(run_of(*good, *slow, *lost[:2], end_s=1.0).metrics(SLO), SLO) is True  # 95 of 100
    assert holds(run_of(*good, *slow, *lost, end_s=1.0).metrics(SLO), SLO) is False  # 95 of 101
    strict = msgspec.structs.replace(SLO, attainment=0.99)
    assert holds(run_of(*good, *slow[:1], end_s=1.0).metrics(strict), strict) is False
