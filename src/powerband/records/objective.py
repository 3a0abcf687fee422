"""The one figure a search makes large, and which of two results is better."""

from powerband.records.metrics import Metrics
from powerband.records.rounds import Objective
from powerband.records.value import Missing

TIE = 0.02  # results closer than this (relative) are told apart by the next figure instead


def objective_value(metrics: Metrics, objective: Objective) -> float:
    """Requests/s within the SLO, output tokens/s, or the share of requests within the SLO."""
    if objective == "goodput_per_s":
        return metrics.goodput_per_s or 0.0
    if objective == "attainment":
        return metrics.attainment or 0.0
    return metrics.output_tokens_per_s


def is_better(metrics: Metrics, than: Metrics, objective: Objective) -> bool:
    """By the objective; where that ties, by attainment, then output tokens/s, then the shorter median TTFT."""
    for mine, other in zip(_figures(metrics, objective), _figures(than, objective), strict=True):
        if abs(mine - other) > TIE * max(abs(mine), abs(other)):
            return mine > other
    return False


def _figures(metrics: Metrics, objective: Objective) -> tuple[float, float, float, float]:
    ttft = metrics.ttft_s
    return (
        objective_value(metrics, objective),
        metrics.attainment or 0.0,
        metrics.output_tokens_per_s,
        float("-inf") if isinstance(ttft, Missing) else -ttft.p50,
    )
