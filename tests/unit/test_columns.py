"""The figures of a run, by hand; many values in bounded memory within their stated error."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.records import quantiles
from powerband.records.columns import Columns, compute_metrics
from powerband.records.metrics import Distribution, Metrics
from powerband.records.quantiles import Quantiles
from powerband.records.request import RequestTrace
from powerband.records.slo import Slo
from powerband.records.value import Missing

MS = 1_000_000


def trace(index: int, sched_ms: float, chunks_ms: tuple[float, ...], **fields: object) -> RequestTrace:
    plain: dict[str, object] = {
        "index": index,
        "status": "ok",
        "input_tokens": 10,
        "output_tokens_asked": 4,
        "t_sched_ns": round(sched_ms * MS),
        "t_send_ns": round((sched_ms + 1) * MS),
        "t_end_ns": round(chunks_ms[-1] * MS) if chunks_ms else None,
        "t_chunks_ns": tuple(round(at * MS) for at in chunks_ms),
        "chunk_tokens": (1,) * len(chunks_ms),
    }
    return RequestTrace(**{**plain, **fields})  # type: ignore[arg-type]


FOUR = [
    trace(0, 0, (100, 110, 120)),  # TTFT 100, TPOT 10, E2E 120
    trace(1, 100, (300, 330)),  # TTFT 200, TPOT 30, E2E 230
    trace(2, 200, (250,), status="error", error="reset: closed by the server after 1 chunks"),
    trace(3, 300, (), status="dropped", t_send_ns=None),
]


def by_hand(metrics: Metrics) -> None:
    assert (metrics.requests, metrics.completed, metrics.errors, metrics.dropped) == (4, 2, 1, 1)
    assert metrics.duration_s == pytest.approx(0.5)  # cut off at 500 ms
    assert metrics.output_tokens_per_s == pytest.approx(5 / 0.5)
    assert metrics.total_tokens_per_s == pytest.approx(25 / 0.5)
    for name, mean, p50, n in (
        ("ttft_s", 0.150, 0.150, 2),
        ("ttft_from_send_s", 0.149, 0.149, 2),
        ("tpot_s", 0.020, 0.020, 2),
        ("itl_s", 0.050 / 3, 0.010, 3),
        ("e2e_s", 0.175, 0.175, 2),
    ):
        found = getattr(metrics, name)
        assert isinstance(found, Distribution)
        assert found.mean == pytest.approx(mean)
        assert found.p50 == pytest.approx(p50)
        assert found.n == n
    assert metrics.attainment == 0.25
    assert metrics.goodput_per_s == pytest.approx(1 / 0.5)


def test_figures_by_hand_in_any_order() -> None:
    slo = Slo(ttft_s=0.15)
    by_hand(compute_metrics(FOUR, slo, 500 * MS))
    by_hand(Columns(reversed(FOUR)).metrics(slo, 500 * MS))


def test_errors_are_counted_by_category_and_the_clients_own_apart() -> None:
    starved = trace(4, 0, (), status="error", error="connect: no free port in the client")
    columns = Columns([*FOUR, starved])
    assert columns.errors == {"reset": 1, "connect": 1}
    assert columns.starved == 1
    assert columns.first_error == "reset: closed by the server after 1 chunks"


def test_latencies_come_in_order_of_schedule() -> None:
    assert Columns(reversed(FOUR)).latencies_s("ttft_s").tolist() == [0.1, 0.2]


def test_nothing_is_missing_and_not_zero() -> None:
    metrics = compute_metrics([])
    assert isinstance(metrics.ttft_s, Missing)
    assert isinstance(metrics.itl_s, Missing)
    assert compute_metrics([FOUR[3]]).duration_s == 0.0


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=300))
def test_few_values_give_numpys_percentiles(values: list[float]) -> None:
    kept = Quantiles()
    kept.add(values)
    assert kept.percentiles([50, 90, 99]) == np.percentile(values, [50, 90, 99]).tolist()
    assert kept.mean == pytest.approx(float(np.mean(values)))


def test_many_values_are_within_the_stated_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "EXACT", 1000)
    dice = random.Random(4)
    values = [math.exp(dice.gauss(-4, 1.5)) for _ in range(50_000)]
    kept = Quantiles()
    for first in range(0, len(values), 15):
        kept.add(values[first : first + 15])
    assert len(kept) == 50_000
    assert kept.mean == pytest.approx(float(np.mean(values)), rel=1e-9)
    for found, true in zip(kept.percentiles([50, 90, 99]), np.percentile(values, [50, 90, 99]), strict=True):
        assert found == pytest.approx(true, rel=0.001)
    assert kept._values.buffer_info()[1] <= 1000
