"""Configs that failed the quality gate: out of the search for good, however fast they were."""

from collections.abc import Callable

from powerband.records.config import EngineConfig, Knob
from powerband.records.run import Predicted, Trial
from powerband.records.slo import Slo
from powerband.tune.search import Search
from powerband.tune.space import Space


def value(config: EngineConfig) -> float:
    """The quantised cache is twice as fast."""
    return float(int(config.knobs["slots"]) ** 0.5) * (2.0 if config.knobs.get("kv") == "q8" else 1.0)


def test_a_barred_config_is_neither_best_nor_asked_for_again(
    knobs: tuple[Knob, ...],
    naive: EngineConfig,
    trial_of: Callable[..., Trial],
    predicted_of: Callable[..., Predicted],
) -> None:
    turned = tuple(knob for knob in knobs if knob.name in ("slots", "kv"))
    search = Search(
        Space(knobs=turned, numerics=True),
        trial_of(naive, value(naive)),
        lambda config: predicted_of(value(config)),
        "goodput_per_s",
        Slo(ttft_s=1.0),
        trial_cost_s=lambda _: 10.0,
        budget_s=1000.0,
    )
    asked: list[EngineConfig] = []
    barred = False
    while (proposal := search.ask()) is not None:
        asked.append(proposal.config)
        measured = value(proposal.config)
        trial = trial_of(proposal.config, measured, n=len(asked) + 1)
        search.tell(trial)
        if not barred and proposal.config.knobs.get("kv") == "q8":
            barred = True
            before = len(asked)
            assert search.best.n == trial.n
            search.bar(lambda config: config.knobs.get("kv") == "q8")
    assert barred
    assert all(config.knobs.get("kv", "f16") == "f16" for config in asked[before:])
    assert search.best.config.knobs.get("kv", "f16") == "f16"


def test_other_costs_shorten_the_search(
    knobs: tuple[Knob, ...],
    naive: EngineConfig,
    trial_of: Callable[..., Trial],
    predicted_of: Callable[..., Predicted],
) -> None:
    search = Search(
        Space(knobs=knobs),
        trial_of(naive, value(naive)),
        lambda config: predicted_of(value(config)),
        "goodput_per_s",
        Slo(ttft_s=1.0),
        trial_cost_s=lambda _: 10.0,
        budget_s=100.0,
    )
    search.charge(95.0)
    assert search.left_s == 5.0
    assert search.ask() is None
    assert "5 s of the budget" in search.stopped_because
