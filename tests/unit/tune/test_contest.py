"""Several engines in one session: by hand, with engines of two settings whose values are known."""

from collections.abc import Callable

import pytest

from powerband.records.config import EngineConfig, Knob
from powerband.records.run import Predicted, Trial
from powerband.records.slo import Slo
from powerband.tune.contest import Contest
from powerband.tune.search import Search
from powerband.tune.space import Space

TrialOf = Callable[..., Trial]
PredictedOf = Callable[..., Predicted]
SLOTS = Knob(name="slots", kind="int", help="", naive=1, grid=(1, 2), addresses=("no_batching",))
VALUES = {("small", 1): 1.0, ("small", 2): 3.0, ("large", 1): 1.5, ("large", 2): 4.0}
COSTS_S = {"small": 10.0, "large": 30.0}


def config(engine: str, slots: int) -> EngineConfig:
    return EngineConfig(engine=engine, model="m", knobs={"slots": slots})


def value(of: EngineConfig) -> float:
    return VALUES[of.engine, int(of.knobs["slots"])]


@pytest.fixture
def contest(trial_of: TrialOf, predicted_of: PredictedOf) -> Contest:
    """Each knows its own baseline, has 100 s, and takes 10 s or 30 s for a trial."""

    def search(engine: str) -> Search:
        return Search(
            Space(knobs=(SLOTS,)),
            trial_of(config(engine, 1), value(config(engine, 1))),
            lambda of: predicted_of(value(of), spread=0.01),
            "goodput_per_s",
            Slo(ttft_s=1.0),
            trial_cost_s=lambda of: COSTS_S[of.engine],
            budget_s=100.0,
        )

    return Contest({engine: search(engine) for engine in COSTS_S})


def test_the_trial_goes_to_the_engine_that_gains_most_a_second(contest: Contest, trial_of: TrialOf) -> None:
    assert contest.best.config == config("large", 1)
    first = contest.ask()
    # Over the best of all, 1.5: the small one's 3 gains 1.5 in 10 s, the large one's 4 gains 2.5 in 30 s.
    assert first is not None
    assert first.config == config("small", 2)
    assert first.gain_per_s == pytest.approx(1.5 / 10, rel=0.1)
    contest.tell(trial_of(first.config, 3.0, n=3))
    assert contest.best.config == first.config
    second = contest.ask()
    assert second is not None
    assert second.config == config("large", 2)
    assert second.gain_per_s == pytest.approx(1.0 / 30, rel=0.4)  # 4 over 3, where the doubt of 10 % shows
    contest.tell(trial_of(second.config, 4.0, n=4))
    assert contest.best.config == second.config
    assert contest.ask() is None
    assert contest.stopped_because == (
        "small: every config was tried or refused (0 refused); large: every config was tried or refused (0 refused)"
    )


def test_what_is_not_worth_it_beside_another_engine_is_not_tried(contest: Contest, trial_of: TrialOf) -> None:
    contest.tell(trial_of(config("large", 2), 4.0, n=3))
    assert contest.ask() is None  # the small one's 3 would triple its own 1, and cannot beat 4
    assert "small: no untried config is expected to gain 1 %" in contest.stopped_because


def test_engines_share_the_budget(contest: Contest, trial_of: TrialOf) -> None:
    contest.tell(trial_of(config("small", 2), 3.0, n=3))  # 10 s, by the fixture
    contest.charge(65.0)
    assert contest.ask() is None
    assert "large: 25 s of the budget are left and a trial takes 30 s" in contest.stopped_because


def test_an_engine_whose_answers_fail_is_out_and_the_first_never(contest: Contest, trial_of: TrialOf) -> None:
    assert contest.best.config.engine == "large"
    assert contest.bar_best(lambda _: True) == "large"  # its baseline and all that share its numbers
    assert contest.best.config == config("small", 1)
    proposal = contest.ask()
    assert proposal is not None
    contest.tell(trial_of(proposal.config, 3.0, n=3))
    assert contest.bar_best(lambda of: of.knobs["slots"] == 2) is None
    assert contest.best.config == config("small", 1)
    assert contest.ask() is None
