"""The metrics that a comparison looks at: their value for a run, and for resampled requests of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from powerband.records.metrics import Distribution, Metrics, e2e_s, is_good, tpot_s, ttft_s
from powerband.records.run import Run
from powerband.records.slo import Slo
from powerband.records.value import Missing

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunValues:
    """One run as arrays over its requests in order of index; nan where a request has no such time."""

    index: tuple[int, ...]
    metrics: Metrics
    columns: dict[str, Floats]


@dataclass(frozen=True, slots=True)
class Metric:
    """``read`` gives the run's value by definition; ``column`` and ``quantile`` say what to resample (None: mean)."""

    name: str
    better: Literal["higher", "lower"]
    read: Callable[[Metrics], float | None]
    column: str
    quantile: float | None


def read_values(run: Run, slo: Slo | None) -> RunValues:
    """The arrays and the metrics of one run."""
    traces = sorted(run.traces, key=lambda trace: trace.index)
    done = [trace.status == "ok" for trace in traces]

    def column(read: Callable[..., float | None]) -> Floats:
        values = [read(trace) if ok else None for trace, ok in zip(traces, done, strict=True)]
        return np.array([np.nan if value is None else value for value in values], dtype=float)

    return RunValues(
        index=tuple(trace.index for trace in traces),
        metrics=run.metrics(slo),
        columns={
            "ttft": column(ttft_s),
            "tpot": column(tpot_s),
            "e2e": column(e2e_s),
            "good": np.array([slo is not None and is_good(trace, slo) for trace in traces], dtype=float),
            "output": np.array(
                [float(t.output_tokens) if ok else 0.0 for t, ok in zip(traces, done, strict=True)], dtype=float
            ),
        },
    )


def _quantile_of(field: str, name: str) -> Callable[[Metrics], float | None]:
    def read(metrics: Metrics) -> float | None:
        value: Distribution | Missing = getattr(metrics, field)
        return None if isinstance(value, Missing) else float(getattr(value, name))

    return read


GOODPUT = Metric("goodput_per_s", "higher", lambda m: m.goodput_per_s, "good", None)
ATTAINMENT = Metric("attainment", "higher", lambda m: m.attainment, "good", None)
OUTPUT = Metric("output_tokens_per_s", "higher", lambda m: m.output_tokens_per_s, "output", None)
LATENCIES = (
    Metric("ttft_p50_s", "lower", _quantile_of("ttft_s", "p50"), "ttft", 0.5),
    Metric("ttft_p99_s", "lower", _quantile_of("ttft_s", "p99"), "ttft", 0.99),
    Metric("tpot_p50_s", "lower", _quantile_of("tpot_s", "p50"), "tpot", 0.5),
    Metric("tpot_p99_s", "lower", _quantile_of("tpot_s", "p99"), "tpot", 0.99),
    Metric("e2e_p50_s", "lower", _quantile_of("e2e_s", "p50"), "e2e", 0.5),
)


def metrics_for(slo: Slo | None) -> tuple[Metric, ...]:
    """Without an SLO there is no goodput and no attainment."""
    return (*(() if slo is None else (GOODPUT,)), OUTPUT, *LATENCIES, *(() if slo is None else (ATTAINMENT,)))


def resample(metric: Metric, values: RunValues, counts: Ints) -> Floats:
    """The metric (up to a constant factor of the run) for each row of ``counts``: how often each request is drawn.

    Quantiles are order statistics without interpolation, which is enough for a spread.
    """
    column = values.columns[metric.column]
    if metric.quantile is None:
        return np.asarray(counts @ np.nan_to_num(column), dtype=float)
    order = np.argsort(column)  # nan last
    order = order[: np.count_nonzero(~np.isnan(column))]
    if order.size == 0:
        return np.full(counts.shape[0], np.nan)
    drawn = np.cumsum(counts[:, order], axis=1)
    place = (drawn >= np.maximum(metric.quantile * drawn[:, -1:], 1)).argmax(axis=1)
    return np.asarray(column[order][place], dtype=float)
