"""The verdict on the client: each bound, broken alone, is named."""

import pytest

from powerband.load.self_check import check_client
from powerband.records.columns import Columns
from powerband.records.request import RequestTrace
from powerband.records.value import Missing

MS = 1_000_000


def trace(index: int, late_ms: float | None = 0.0, ttft_ms: float = 100.0, error: str | None = None) -> RequestTrace:
    due = index * 10 * MS
    first = due + round(ttft_ms * MS)
    return RequestTrace(
        index=index,
        status="error" if error else "ok" if late_ms is not None else "dropped",
        input_tokens=1,
        output_tokens_asked=2,
        t_sched_ns=due,
        t_send_ns=None if late_ms is None else due + round(late_ms * MS),
        t_end_ns=first + MS,
        t_chunks_ns=(first, first + MS),
        chunk_tokens=(1, 1),
        error=error,
    )


LAGS = [0.001] * 50


def test_a_quiet_run_is_ok() -> None:
    check = check_client(Columns(trace(n) for n in range(100)), LAGS, 0.2, open_loop=True)
    assert check.verdict == "ok"
    assert check.offered_per_s == pytest.approx(100)
    assert check.sent_per_s == pytest.approx(100)
    assert not isinstance(check.schedule_delay_s, Missing)
    assert check.schedule_delay_s.p99 == 0


@pytest.mark.parametrize(
    ("late_ms", "ttft_ms", "verdict"),
    [(9, 100, "ok"), (11, 100, "limited"), (11, 1000, "ok"), (51, 1000, "limited")],
)
def test_late_starts_count_against_the_floor_and_the_latency(late_ms: float, ttft_ms: float, verdict: str) -> None:
    """Forgiven: 10 ms, or 5 % of the median time to first token where that is more."""
    traces = [trace(n, late_ms if n % 20 == 0 else 0.0, ttft_ms) for n in range(200)]
    check = check_client(Columns(traces), LAGS, 0.2, open_loop=True)
    assert check.verdict == verdict
    assert ("late" in check.reason) == (verdict == "limited" or "starts at most" in check.reason)


def test_a_lagging_loop_is_limited() -> None:
    check = check_client(Columns(trace(n) for n in range(100)), [0.001] * 40 + [0.05] * 10, 0.2, open_loop=True)
    assert check.verdict == "limited"
    assert "event loop" in check.reason


def test_a_full_core_is_limited() -> None:
    check = check_client(Columns(trace(n) for n in range(100)), LAGS, 0.95, open_loop=False)
    assert check.verdict == "limited"
    assert "95 % of its core" in check.reason
    assert check.offered_per_s is None


def test_requests_that_never_left_are_limited() -> None:
    traces = [trace(n, 0.0 if n < 90 else None) for n in range(100)]
    check = check_client(Columns(traces), LAGS, 0.2, open_loop=True)
    assert check.verdict == "limited"
    assert "offered" in check.reason


def test_running_out_of_ports_is_the_clients_fault() -> None:
    traces = [trace(n, error="connect: no free port in the client" if n == 3 else None) for n in range(100)]
    assert "no free port" in check_client(Columns(traces), LAGS, 0.2, open_loop=True).reason


def test_a_run_that_sent_nothing_has_no_delay() -> None:
    check = check_client(Columns(), [], 0.0, open_loop=True)
    assert isinstance(check.schedule_delay_s, Missing)
    assert check.offered_per_s is None
