"""The search against an imaginary engine: what it asks for first, what it learns, and when it stops."""

import random
from collections.abc import Callable

import pytest

from powerband.records.config import EngineConfig, Knob
from powerband.records.errors import RequestError
from powerband.records.run import Predicted, Trial
from powerband.records.slo import Slo
from powerband.tune.search import Proposal, Search
from powerband.tune.space import Space

TrialOf = Callable[..., Trial]
PredictedOf = Callable[..., Predicted]
SLO = Slo(ttft_s=1.0)
KERNEL = {"a": 1.0, "b": 1.2, "c": 0.7}  # what no model of the scheduler knows


def modelled(config: EngineConfig) -> float:
    """Batching helps up to 16 slots, large chunks a little: the part that a simulator can know."""
    slots, chunk = int(config.knobs["slots"]), int(config.knobs["chunk"])
    return float(min(slots, 16) ** 0.7) * (1.0 if slots <= 16 else 0.8) * (1.0 + 0.02 * (chunk == 512))


def true_value(config: EngineConfig) -> float:
    return modelled(config) * KERNEL[str(config.knobs["kernel"])]


def build(
    knobs: tuple[Knob, ...],
    naive: EngineConfig,
    trial_of: TrialOf,
    predicted_of: PredictedOf,
    *,
    budget_s: float = 1000.0,
    reserved_s: float = 0.0,
    refuses: Callable[[EngineConfig], str | None] = lambda _: None,
    minimum_gain: float = 0.02,
) -> Search:
    return Search(
        Space(knobs=knobs, refuses=refuses),
        trial_of(naive, true_value(naive)),
        lambda config: predicted_of(modelled(config)),
        "goodput_per_s",
        SLO,
        causes=("no_batching", "head_of_line_blocking"),
        trial_cost_s=lambda _: 10.0,
        budget_s=budget_s,
        reserved_s=reserved_s,
        minimum_gain=minimum_gain,
    )


def drive(search: Search, trial_of: TrialOf, measure: Callable[[EngineConfig], float]) -> list[Proposal]:
    asked = []
    while (proposal := search.ask()) is not None:
        asked.append(proposal)
        assert len(asked) < 200, "it does not stop"
        search.tell(trial_of(proposal.config, measure(proposal.config), n=len(asked) + 1))
    return asked


def test_the_first_proposal_addresses_the_located_cause(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    proposal = build(knobs, naive, trial_of, predicted_of).ask()
    assert proposal is not None
    assert proposal.cause == "no_batching"
    assert proposal.config.knobs["slots"] == 16
    assert "slots 1 -> 16" in proposal.why
    assert proposal.predicted.interval.low < proposal.predicted.objective < proposal.predicted.interval.high


def test_it_finds_what_the_predictor_cannot_know(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    search = build(knobs, naive, trial_of, predicted_of)
    asked = drive(search, trial_of, true_value)
    assert search.best.config.knobs["kernel"] == "b"
    assert search.best.config.knobs["slots"] == 16
    assert len(asked) <= 8  # of 53
    assert "expected to gain" in search.stopped_because


def test_it_does_not_turn_what_alters_the_answers(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    asked = drive(build(knobs, naive, trial_of, predicted_of, minimum_gain=0.0001), trial_of, true_value)
    assert all(proposal.config.knobs.get("kv", "f16") == "f16" for proposal in asked)


def test_budget_ends_it(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    search = build(knobs, naive, trial_of, predicted_of, budget_s=25.0)
    assert len(drive(search, trial_of, true_value)) == 2
    assert search.stopped_because == "5 s of the budget are left and a trial takes 10 s"
    search = build(knobs, naive, trial_of, predicted_of, budget_s=5.0, reserved_s=60.0)
    assert search.ask() is None
    assert search.stopped_because == "5 s of the budget are left beside 60 s kept to verify and a trial takes 10 s"


def test_failures_teach(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    search = build(knobs, naive, trial_of, predicted_of)
    died = []
    for n in range(2, 30):
        proposal = search.ask()
        if proposal is None:
            break
        if int(proposal.config.knobs["slots"]) >= 16:  # nobody knew that this many die
            died.append(proposal.config.knobs["slots"])
            search.tell(trial_of(proposal.config, None, n=n, status="failed"))
        else:
            search.tell(trial_of(proposal.config, true_value(proposal.config), n=n))
    assert search.best.config.knobs["slots"] == 8
    assert len(died) <= 4  # of 18 such configs
    assert 32 not in died[:1]


def test_a_spoilt_trial_is_tried_once_more(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    search = build(knobs, naive, trial_of, predicted_of)
    first = search.ask()
    assert first is not None
    search.tell(trial_of(first.config, 0.1, n=2, status="contended"))
    again = search.ask()
    assert again is not None
    assert again.config.key == first.config.key
    search.tell(trial_of(again.config, 0.1, n=3, status="contended"))
    third = search.ask()
    assert third is not None
    assert third.config.key != first.config.key
    assert search.best.config.key == search.trials[0].config.key


def test_refused_configs_are_listed_with_the_reason(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    search = build(
        knobs,
        naive,
        trial_of,
        predicted_of,
        refuses=lambda config: "does not fit" if int(config.knobs["slots"]) > 4 else None,
    )
    asked = drive(search, trial_of, true_value)
    assert max(int(proposal.config.knobs["slots"]) for proposal in asked) == 4
    refused = [pruned for pruned in search.pruned if pruned.reason == "does not fit"]
    assert len(refused) == 3 * 3 * 3  # slots 8, 16, 32 x chunks x kernels


def test_bound_prunes_what_cannot_win(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    search = build(knobs, naive, trial_of, predicted_of)
    drive(search, trial_of, true_value)
    pruned = {pruned.config.knobs["slots"] for pruned in search.pruned}
    assert 2 in pruned  # at most 2 ** 0.7 = 1.6 against 7 x 1.2
    assert all("cannot beat" in pruned.reason for pruned in search.pruned)


def test_noise_does_not_mislead_it(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    reached = []
    for seed in range(20):
        draw = random.Random(seed)
        search = build(knobs, naive, trial_of, predicted_of, budget_s=80.0)
        drive(search, trial_of, lambda config, draw=draw: true_value(config) * draw.gauss(1.0, 0.04))  # type: ignore[misc]
        reached.append(true_value(search.best.config) / (16**0.7 * 1.02 * 1.2))
    assert sum(reached) / len(reached) > 0.95


def test_same_trials_same_questions(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    asked = [
        [proposal.config.key for proposal in drive(build(knobs, naive, trial_of, predicted_of), trial_of, true_value)]
        for _ in range(2)
    ]
    assert asked[0] == asked[1]


def test_a_failed_baseline_is_refused(
    knobs: tuple[Knob, ...], naive: EngineConfig, trial_of: TrialOf, predicted_of: PredictedOf
) -> None:
    with pytest.raises(RequestError, match="trial 1 is failed"):
        Search(
            Space(knobs=knobs),
            trial_of(naive, None, status="failed"),
            lambda config: predicted_of(1.0),
            "goodput_per_s",
            SLO,
            trial_cost_s=lambda _: 1.0,
            budget_s=1.0,
        )
