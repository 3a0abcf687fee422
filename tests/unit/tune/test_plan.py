"""Words of a plan, and the frontier."""

from collections.abc import Callable

from powerband.records.config import EngineConfig
from powerband.records.run import Predicted
from powerband.records.workload import RequestSpec, Workload
from powerband.tune.pareto import Point, pareto_front
from powerband.tune.plan import describe_change, describe_effect, describe_traffic

WORKLOAD = Workload(
    requests=(
        RequestSpec(offset_ns=0, input_tokens=100, output_tokens=10),
        RequestSpec(offset_ns=2_000_000_000, input_tokens=300, output_tokens=50),
    ),
    source="test",
)


def test_a_change_in_words(naive: EngineConfig) -> None:
    assert describe_change(naive.replace(slots=8, kernel="b"), naive, "no_batching") == (
        "kernel a -> b, slots 1 -> 8 (for no_batching)"
    )
    assert describe_change(naive.replace(flag=True), naive, "undecided") == "flag default -> true"
    assert describe_change(naive, naive, "undecided") == "no change"


def test_an_effect_and_the_traffic_it_holds_for_in_words(predicted_of: Callable[..., Predicted]) -> None:
    assert describe_effect(predicted_of(3.0), "goodput_per_s", 1.0) == (
        "3 requests/s within the promise (2.7 to 3.3, 90 %), 3 times against 1"
    )
    assert describe_traffic(WORKLOAD) == (
        "0.5 requests/s, prompts of 200 tokens on average and at most 300, answers of 30 and at most 50"
    )


def test_frontier_by_hand(naive: EngineConfig) -> None:
    def point(name: str, throughput: float, latency_s: float) -> Point:
        return Point(config=naive.replace(name=name), throughput=throughput, latency_s=latency_s)

    front = pareto_front(
        [
            point("slow", 5, 2.0),
            point("fast", 3, 1.0),
            point("worse", 2, 1.5),
            point("equal", 3, 1.0),
            point("big", 9, 8.0),
        ]
    )
    assert [found.config.knobs["name"] for found in front] == ["fast", "slow", "big"]
    assert pareto_front([]) == []
