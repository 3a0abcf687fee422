"""Why a promise is not kept, in words: every term of a step has its own, and impossible is told from overloaded."""

from collections.abc import Callable

import pytest

from powerband.records.config import EngineConfig
from powerband.records.slo import Slo
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.loop import simulate
from powerband.simulate.scheduler import Limits
from powerband.simulate.shortfall import explain_shortfall
from powerband.simulate.step_time import StepTime

WORKLOAD = Workload(
    requests=tuple(RequestSpec(offset_ns=0, input_tokens=100, output_tokens=11) for _ in range(4)), source="test"
)
LIMITS = Limits(slots=1, batch_tokens=1000)


@pytest.mark.parametrize(
    ("terms", "slo", "words"),
    [
        ({"token_s": 0.01}, Slo(ttft_s=0.5), "TTFT of 500 ms cannot be kept at any load"),
        ({"token_s": 0.01}, Slo(ttft_s=0.5), "arithmetic: more FLOP/s"),
        ({"weight_s": 1.0}, Slo(tpot_s=0.5), "2 times that; 100 % of it is reading the weights"),
        ({"overhead_s": 1.0}, Slo(tpot_s=0.5), "launches and host work"),
        ({"context_token_s": 0.01}, Slo(tpot_s=0.5), "reading the KV cache"),
        ({"pair_s": 0.01}, Slo(ttft_s=0.5), "attention over the prompt"),
        ({"collective_s": 1.0}, Slo(tpot_s=0.5), "collectives"),
        ({"sequence_s": 1.0}, Slo(tpot_s=0.5), "host work for each sequence"),
        ({"request_s": 1.0}, Slo(ttft_s=0.5), "outside the engine's steps"),
    ],
)
def test_the_largest_term_is_named(
    config: EngineConfig, step_of: Callable[..., StepTime], terms: dict[str, float], slo: Slo, words: str
) -> None:
    step = step_of(**terms)
    metrics = simulate(config, WORKLOAD, step, LIMITS).metrics(slo)
    found = explain_shortfall(step, WORKLOAD, slo, metrics)
    assert found is not None
    assert words in found


def test_a_queue_is_no_impossibility(config: EngineConfig, step_of: Callable[..., StepTime]) -> None:
    step, slo = step_of(weight_s=0.1), Slo(ttft_s=1.0)  # a request takes 1.1 s alone, four of them queue for one slot
    metrics = simulate(config, WORKLOAD, step, LIMITS).metrics(slo)
    found = explain_shortfall(step, WORKLOAD, slo, metrics)
    assert found is not None
    assert found.startswith("attainment is 25.0 % against 95.0 %; TTFT p90 ")


def test_a_kept_promise_needs_no_words(config: EngineConfig, step_of: Callable[..., StepTime]) -> None:
    step, slo = step_of(weight_s=0.001), Slo(ttft_s=1.0)
    assert explain_shortfall(step, WORKLOAD, slo, simulate(config, WORKLOAD, step, LIMITS).metrics(slo)) is None
