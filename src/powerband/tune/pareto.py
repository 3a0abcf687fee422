"""The frontier: configs that no other beats in both throughput and latency."""

from collections.abc import Sequence

from powerband.records.config import EngineConfig
from powerband.records.value import Record


class Point(Record):
    """A config by its throughput (more is better) and its latency in seconds (less is better)."""

    config: EngineConfig
    throughput: float
    latency_s: float


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Points that are not dominated, from the lowest latency to the highest throughput; of equals the first stays."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.latency_s, -point.throughput)):
        if not front or point.throughput > front[-1].throughput:
            front.append(point)
    return front
