"""Predictions: the quick figures are the metrics' own, the interval is the step time's, equal configs cost nothing."""

import random

import msgspec
import pytest

from powerband.records.config import EngineConfig
from powerband.records.hardware import DeviceSpec
from powerband.records.metrics import Distribution
from powerband.records.model import ModelSpec
from powerband.records.slo import Slo
from powerband.records.value import known
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.figures import simulate_figures
from powerband.simulate.loop import simulate
from powerband.simulate.predict import Predictor, predict
from powerband.simulate.scheduler import Limits, limits_of
from powerband.simulate.step_time import StepTime, predict_from_datasheet
from powerband.simulate.what_if import what_if

VLLM = EngineConfig(engine="vllm", model="llama")
SLO = Slo(ttft_s=0.3, tpot_s=0.02)


def traffic(seed: int, count: int = 120, rate_per_s: float = 12.0, concurrency: int | None = None) -> Workload:
    draw = random.Random(seed)
    at_s = 0.0
    requests = []
    for _ in range(count):
        at_s += draw.expovariate(rate_per_s)
        requests.append(
            RequestSpec(
                offset_ns=round(at_s * 1e9), input_tokens=draw.randint(10, 2000), output_tokens=draw.randint(1, 90)
            )
        )
    return Workload(requests=tuple(requests), source="test", concurrency=concurrency)


@pytest.fixture(scope="module")
def prior(llama_8b: ModelSpec, h100: DeviceSpec) -> StepTime:
    return predict_from_datasheet(llama_8b, h100, VLLM)


@pytest.mark.parametrize("deadline_s", [None, 3.0])
@pytest.mark.parametrize("concurrency", [None, 3])
@pytest.mark.parametrize("slots", [1, 16])
def test_figures_equal_metrics(prior: StepTime, deadline_s: float | None, concurrency: int | None, slots: int) -> None:
    workload = traffic(slots, concurrency=concurrency)
    limits = Limits(slots=slots, batch_tokens=2048, slot_tokens=1900)
    figures = simulate_figures(workload, prior, limits, slo=SLO, deadline_s=deadline_s)
    metrics = simulate(VLLM, workload, prior, limits, deadline_s=deadline_s).metrics(SLO)
    assert figures.output_tokens_per_s == pytest.approx(metrics.output_tokens_per_s, rel=1e-9)
    assert figures.goodput_per_s == pytest.approx(metrics.goodput_per_s, rel=1e-9)
    assert figures.attainment == metrics.attainment
    assert isinstance(metrics.ttft_s, Distribution)
    assert isinstance(metrics.tpot_s, Distribution)
    assert figures.ttft_p99_s == pytest.approx(metrics.ttft_s.p99, rel=1e-9)
    assert figures.tpot_p50_s == pytest.approx(metrics.tpot_s.p50, rel=1e-9)


def test_interval_holds_the_middle_and_narrows_with_certainty(prior: StepTime) -> None:
    def width(step: StepTime) -> float:
        predicted = predict(VLLM, traffic(1), step, limits_of(VLLM), objective="output_tokens_per_s")
        assert predicted.interval.low <= predicted.objective <= predicted.interval.high
        return predicted.interval.high - predicted.interval.low

    sure = StepTime(
        **{
            **{name: getattr(prior, name) for name in prior.__struct_fields__},
            "covariance": ((0.0,) * 12,) * 12,
            "residual": 0.01,
        }
    )
    busy = width(prior)
    assert busy > 0
    assert width(sure) < busy / 4


def test_launches_that_no_step_waits_for_widen_no_interval(prior: StepTime) -> None:
    """Prompts of thousands of tokens take the card longer than the host's launches, in a graph or not."""
    chunks = tuple(RequestSpec(offset_ns=0, input_tokens=8000, output_tokens=64) for _ in range(8))
    workload = Workload(requests=chunks, source="test", concurrency=1)
    graphs, none = (
        what_if(VLLM, workload, prior),
        what_if(VLLM.replace(cudagraph_mode="FULL_DECODE_ONLY"), workload, prior),
    )
    assert none.intervals == graphs.intervals


def test_a_hopeless_config_is_simulated_twice_only(prior: StepTime) -> None:
    one_slot = VLLM.replace(max_num_seqs=1)
    predicted = predict(
        one_slot, traffic(1), prior, limits_of(one_slot), objective="goodput_per_s", slo=SLO, beat=1000.0
    )
    assert predicted.response is not None
    assert len(predicted.response.log_step) == 2
    assert predicted.interval.low == 0.0


def test_equal_configs_are_simulated_once(prior: StepTime) -> None:
    predictor = Predictor(prior, traffic(1), objective="output_tokens_per_s")
    assert predictor(VLLM) == predictor(VLLM.replace(something_unknown="x"))
    assert predictor.simulated == 1
    predictor(VLLM.replace(max_num_seqs=2))
    predictor(VLLM.replace(kv_cache_dtype="fp8"))
    assert predictor.simulated == 3


def test_a_predictor_says_what_predict_says(prior: StepTime) -> None:
    workload = traffic(3)
    predictor = Predictor(prior, workload, objective="goodput_per_s", slo=SLO, kv_tokens_of=lambda _: 20_000)
    for config in (VLLM, VLLM.replace(max_num_seqs=4, tensor_parallel_size=2)):
        alone = predict(
            config, workload, prior.at(config), limits_of(config, 20_000), objective="goodput_per_s", slo=SLO
        )
        assert predictor(config) == alone


def test_what_if_says_where_a_promise_stops_holding(prior: StepTime) -> None:
    # The seeds' outage: a config tuned on short prompts meets prompts that nobody tested.
    short = Workload(
        requests=tuple(RequestSpec(offset_ns=i * 50_000_000, input_tokens=200, output_tokens=50) for i in range(100)),
        source="short",
    )
    long = Workload(
        requests=tuple(RequestSpec(offset_ns=i * 50_000_000, input_tokens=6000, output_tokens=50) for i in range(100)),
        source="long",
    )
    assert what_if(VLLM, short, prior, slo=SLO).holds is True
    broken = what_if(VLLM, long, prior, slo=SLO)
    assert broken.holds is False
    assert broken.basis == "simulated"
    assert broken.intervals["ttft_p99_s"].high > broken.intervals["ttft_p99_s"].low


def test_an_impossible_promise_says_by_how_much_and_what_limits_it(prior: StepTime) -> None:
    # 15 GB of weights at 3.35 TB/s x 0.82 take 5.5 ms: no load keeps 3 ms a token.
    found = what_if(VLLM, traffic(5, count=20), prior, slo=Slo(tpot_s=0.003))
    assert found.holds is False
    assert found.shortfall is not None
    assert "TPOT of 3 ms cannot be kept at any load" in found.shortfall
    assert "reading the weights" in found.shortfall


def test_a_promise_broken_by_load_says_so(prior: StepTime) -> None:
    found = what_if(VLLM.replace(max_num_seqs=1), traffic(5, rate_per_s=50.0), prior, slo=Slo(ttft_s=0.5))
    assert found.shortfall is not None
    assert "attainment is" in found.shortfall
    assert "TTFT p90" in found.shortfall
    kept = what_if(VLLM, traffic(5, rate_per_s=1.0), prior, slo=Slo(ttft_s=5.0))
    assert (kept.holds, kept.shortfall) == (True, None)


def test_without_a_slo_nothing_is_promised(prior: StepTime) -> None:
    found = what_if(VLLM, traffic(2), prior)
    assert found.holds is None
    assert "goodput_per_s" not in found.intervals
    assert known(found.metrics.output_tokens_per_s if found.metrics else None)


def test_few_good_requests_are_a_whole_count_that_chance_decides_too(prior: StepTime) -> None:
    """One seat for 28 requests: hardly any is good, and however surely the step is known one more may be."""
    one_slot, workload = VLLM.replace(max_num_seqs=1), traffic(1, count=28)
    sure = msgspec.structs.replace(prior.at(one_slot), covariance=((0.0,) * 12,) * 12, residual=0.001)
    limits = limits_of(one_slot)
    found = predict(one_slot, workload, sure, limits, objective="goodput_per_s", slo=SLO)
    figures = simulate_figures(workload, sure, limits, slo=SLO)
    assert found.requests == 28
    assert found.per_request == pytest.approx(1 / figures.duration_s)
    assert found.interval.high > found.objective + 1.5 * found.per_request
    told = what_if(one_slot, workload, sure, slo=SLO).intervals
    assert told["goodput_per_s"].high == pytest.approx(found.interval.high, rel=1e-3)
    assert told["attainment"].high == pytest.approx(found.interval.high / found.per_request / 28, rel=1e-3)
    tokens = predict(one_slot, workload, sure, limits, objective="output_tokens_per_s")
    assert tokens.interval.high < 1.01 * tokens.objective


def test_copies_inside_an_engine_share_the_requests(prior: StepTime) -> None:
    workload = traffic(4, count=40, rate_per_s=60.0)
    two = VLLM.replace(data_parallel_size=2)
    half = Workload(requests=workload.requests[::2], source="test")
    alone = predict(VLLM, half, prior, limits_of(VLLM), objective="goodput_per_s", slo=SLO)
    both = predict(two, workload, prior, limits_of(two), objective="goodput_per_s", slo=SLO)
    assert both.objective == pytest.approx(2 * alone.objective)
    assert (both.ttft_p50_s, both.attainment, both.requests) == (alone.ttft_p50_s, alone.attainment, 40)
    predictor = Predictor(prior, workload, objective="goodput_per_s", slo=SLO)
    assert predictor(two) == both
    assert predictor(VLLM) != both
