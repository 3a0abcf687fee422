"""What is sought beside speed: the cheapest tokens and the fewest cards, by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from powerband.records.config import EngineConfig, Knob, Value, cards_of
from powerband.records.metrics import Metrics
from powerband.records.rounds import Goal, Objective
from powerband.records.run import Predicted, Trial
from powerband.records.slo import Slo
from powerband.tune.objective import appraisal
from powerband.tune.search import Search
from powerband.tune.space import Space

TENSOR = Knob(name="tensor_parallel_size", kind="int", help="", naive=1, grid=(1, 2, 4))
SERVED = {1: 3.0, 2: 5.0, 4: 6.0}  # requests/s within the promise: 3, 2.5 and 1.5 for each card
HELD = {1: 0.80, 2: 0.97, 4: 0.99}  # of all requests


def config(cards: int) -> EngineConfig:
    return EngineConfig(engine="vllm", model="m", knobs={"tensor_parallel_size": cards})


def test_worth_by_hand() -> None:
    values = np.array([4.0, 0.95, 0.5])
    assert appraisal("speed", cards_of, attainment=0.95)(config(2), values).tolist() == values.tolist()
    assert appraisal("cost", cards_of, attainment=0.95)(config(2), values).tolist() == [2.0, 0.475, 0.25]
    cards = appraisal("cards", cards_of, attainment=0.95)(config(2), values)
    assert cards.tolist() == [0.5, 0.5, pytest.approx(0.5 / 0.95 / 4097)]
    most = appraisal("cards", cards_of, attainment=0.95)(config(4096), np.array([0.95]))
    assert most[0] > appraisal("cards", cards_of, attainment=0.95)(config(1), np.array([0.949]))[0]


@pytest.mark.parametrize(
    ("goal", "baseline", "tried", "best"),
    [
        ("speed", 2, [4], 4),  # one card cannot do more
        ("cost", 2, [1], 1),  # four cannot be cheaper
        ("cards", 4, [2], 2),  # one does not keep the promise
        ("cards", 1, [2], 2),  # what keeps it comes first, with as few as can be
    ],
)
def test_each_goal_finds_its_own_best(
    goal: Goal,
    baseline: int,
    tried: list[int],
    best: int,
    metrics_of: Callable[..., Metrics],
    predicted_of: Callable[..., Predicted],
) -> None:
    objective: Objective = "attainment" if goal == "cards" else "goodput_per_s"
    truth = HELD if goal == "cards" else SERVED

    def trial(of: EngineConfig, n: int) -> Trial:
        cards = int(of.knobs["tensor_parallel_size"])
        measured = metrics_of(SERVED[cards], attainment=HELD[cards])
        return Trial(n=n, purpose="tune", config=of, status="done", measured=measured, engine_seconds=10.0)

    search = Search(
        Space(knobs=(TENSOR,)),
        trial(config(baseline), 1),
        lambda of: predicted_of(truth[int(of.knobs["tensor_parallel_size"])], spread=0.003),
        objective,
        Slo(ttft_s=1.0, attainment=0.95),
        trial_cost_s=lambda _: 10.0,
        budget_s=100.0,
        appraise=appraisal(goal, cards_of, attainment=0.95),
    )
    asked: list[int] = []
    while (proposal := search.ask()) is not None:
        asked.append(int(proposal.config.knobs["tensor_parallel_size"]))
        search.tell(trial(proposal.config, len(asked) + 1))
    assert asked == tried
    assert search.best.config == config(best)


def test_cards_of_a_config() -> None:
    assert cards_of(EngineConfig(engine="sglang", model="m", knobs={"tp_size": 2, "dp_size": 2})) == 4
    shared: dict[str, Value] = {"tp_size": 4, "dp_size": 4, "enable_dp_attention": True}
    assert cards_of(EngineConfig(engine="sglang", model="m", knobs=shared)) == 4  # attention's copies lie on these
    assert cards_of(EngineConfig(engine="llamacpp", model="m", knobs={"n_parallel": 4})) == 1
