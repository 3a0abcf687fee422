"""The gate inside the loop: the faster width that fails is left for the slower one that passes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from powerband.engines.base import get_engine
from powerband.gate import numerics
from powerband.loop import Loop
from powerband.records.config import EngineConfig
from powerband.records.errors import EngineError
from powerband.records.metrics import Metrics
from powerband.records.quality import QualityReport
from powerband.records.run import Predicted, Trial
from powerband.records.value import Interval, Missing
from powerband.tune.contest import Contest
from powerband.tune.search import Search
from powerband.tune.space import Space

CASE = cast(Any, SimpleNamespace(objective="output_tokens_per_s"))  # all that the gate's half of a loop asks of one
BASELINE = EngineConfig(engine="fake", model="fake", knobs={"slots": 4})


class StubGate:
    """Passes what ``passes`` holds, fails the rest, and takes ten seconds for it."""

    def __init__(self, passes: set[int]) -> None:
        self.passes, self.seconds = passes, 0.0
        self.asked: list[int] = []

    def check(self, reference: EngineConfig, candidate: EngineConfig) -> QualityReport:
        bits = int(candidate.knobs["bits"])
        self.asked.append(bits)
        self.seconds += 10.0
        if bits == 8 and not self.passes:
            raise EngineError("the engine died")
        return QualityReport(
            verdict="passed" if bits in self.passes else "failed",
            reason="stub",
            task="chat",
            preset="chat",
            metrics=(),
            worst=(),
            reference=reference,
            candidate=candidate,
            engine_version="stub",
            seconds=10.0,
        )


def speed(config: EngineConfig) -> float:
    return 100.0 * {16: 1.0, 8: 1.3, 4: 2.0}[int(config.knobs.get("bits", 16))]


def trial(config: EngineConfig, n: int) -> Trial:
    none = Missing(missing="not part of the test")
    rate = speed(config)
    metrics = Metrics(
        requests=10, completed=10, errors=0, dropped=0, duration_s=1.0, request_rate_per_s=10.0,
        input_tokens_per_s=1.0, output_tokens_per_s=rate, total_tokens_per_s=rate, ttft_s=none, ttft_from_send_s=none,
        tpot_s=none, itl_s=none, e2e_s=none, attainment=None, goodput_per_s=None,
    )  # fmt: skip
    return Trial(n=n, purpose="tune", config=config, status="done", measured=metrics, engine_seconds=10.0)


def predict(config: EngineConfig) -> Predicted:
    rate = speed(config)
    return Predicted(objective=rate, interval=Interval(low=0.9 * rate, high=1.1 * rate), output_tokens_per_s=rate)


@pytest.mark.parametrize(("passes", "wins", "asked"), [({8}, 8, [4, 8]), ({8, 4}, 4, [4]), (set(), 16, [4, 8])])
def test_what_does_not_pass_is_never_the_best(passes: set[int], wins: int, asked: list[int]) -> None:
    knobs = tuple(knob for knob in get_engine("fake").knobs() if knob.name == "bits")
    search = Search(
        Space(knobs=knobs, numerics=True),
        trial(BASELINE, 1),
        predict,
        "output_tokens_per_s",
        None,
        trial_cost_s=lambda _: 10.0,
        budget_s=200.0,
    )
    closed: list[bool] = []
    loop = Loop(CASE, cast(Any, SimpleNamespace(close=lambda: closed.append(True))))
    gate = StubGate(passes)
    loop.gate = cast(Any, gate)
    count = 1
    while (proposal := search.ask()) is not None:
        count += 1
        search.tell(trial(proposal.config, count))
        loop._bar_what_fails(Contest({"fake": search}), BASELINE)
    assert int(search.best.config.knobs.get("bits", 16)) == wins
    assert sorted(set(gate.asked)) == sorted(asked)
    assert closed  # the engine of the trials was stopped before the gate's started
    assert search.left_s <= 200.0 - 10.0 * (count - 1) - gate.seconds


def test_without_a_gate_the_need_for_one_is_told() -> None:
    loop = Loop(CASE, cast(Any, None))
    found = loop.quality_of(BASELINE, BASELINE.replace(bits=4))
    assert (found.verdict, found.reason) == ("not_run", "bits=4 can change the answers")
    assert loop.quality_of(BASELINE, BASELINE.replace(slots=8)).verdict == "not_needed"
    assert numerics(BASELINE) == {"bits": 16}
