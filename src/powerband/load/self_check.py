"""Was the client the limit? Schedule delay, event-loop lag and CPU share, against stated bounds."""

import asyncio
import time
from array import array
from collections.abc import Sequence

from powerband.records.columns import NEVER, Columns
from powerband.records.metrics import distribution, summarise
from powerband.records.run import ClientCheck
from powerband.records.units import NS_PER_S, format_duration, ns_to_s, percent
from powerband.records.value import Missing

DELAY_FLOOR_S = 0.010  # a start this late at p99 is forgiven, whatever the latencies are
DELAY_SHARE = 0.05  # ... and one below this share of the median TTFT
CPU_LIMIT = 0.9  # of one core, by the busiest client process
SENT_SHARE = 0.98  # of the offered rate
_TICK_S = 0.02


class LoopWatch:
    """Samples how late the event loop runs what was due, and the process's CPU time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.lags_s = array("d")
        self._cpu_start_s, self._start_s = time.process_time(), time.monotonic()
        self._handle: asyncio.TimerHandle | None = None
        self._schedule()

    def stop(self) -> float:
        """End the watch; the CPU share of one core since it began."""
        if self._handle is not None:
            self._handle.cancel()
        passed = time.monotonic() - self._start_s
        return (time.process_time() - self._cpu_start_s) / passed if passed > 0 else 0.0

    def _schedule(self) -> None:
        self._due = self._loop.time() + _TICK_S
        self._handle = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self.lags_s.append(max(0.0, self._loop.time() - self._due))
        self._schedule()


def check_client(columns: Columns, lags_s: Sequence[float], cpu_ratio: float, *, open_loop: bool) -> ClientCheck:
    """``limited`` with the first bound that was broken, or ``ok`` with the figures.

    The delay of a start counts from the scheduled instant; what was due and never sent counts as sent never.
    """
    sent_at = columns.t_send_ns != NEVER
    delay = summarise((columns.t_send_ns - columns.t_sched_ns)[sent_at] / NS_PER_S, "no request was sent")
    lag = distribution(lags_s, "the run was shorter than one tick")
    offered, sent = _rates(columns) if open_loop else (None, None)
    ttft = summarise(columns.latencies_s("ttft_s"), "none")
    bound = DELAY_FLOOR_S if isinstance(ttft, Missing) else max(DELAY_FLOOR_S, DELAY_SHARE * ttft.p50)
    problems = []
    if not isinstance(delay, Missing) and delay.p99 > bound:
        problems.append(f"1 % of the requests started over {format_duration(delay.p99)} late")
    if not isinstance(lag, Missing) and lag.p99 > bound:
        problems.append(f"the event loop ran {format_duration(lag.p99)} late at p99")
    if cpu_ratio > CPU_LIMIT:
        problems.append(f"the client used {percent(cpu_ratio)} of its core")
    if offered is not None and sent is not None and sent < SENT_SHARE * offered:
        problems.append(f"sent {sent:.4g} requests/s of {offered:.4g} offered")
    if columns.starved:
        problems.append(f"{columns.starved} requests found no free port or file in the client")
    figures = f"starts at most {format_duration(_p99(delay))} late at p99, CPU {percent(cpu_ratio)} of a core"
    return ClientCheck(
        verdict="limited" if problems else "ok",
        reason=f"{'; '.join(problems)} (bound {format_duration(bound)})" if problems else figures,
        schedule_delay_s=delay,
        loop_lag_s=lag,
        cpu_ratio=cpu_ratio,
        offered_per_s=offered,
        sent_per_s=sent,
    )


def _p99(value: object) -> float:
    return float(getattr(value, "p99", 0.0))


def _rates(columns: Columns) -> tuple[float | None, float | None]:
    """Requests/s that were due, and that left, each over its own span from the first instant due."""
    due, left = columns.t_sched_ns, columns.t_send_ns
    left = left[left != NEVER]
    if len(due) < 2 or due.max() == due.min():
        return None, None
    span_s = ns_to_s(int(due.max() - due.min()))
    sent_span_s = max(span_s, ns_to_s(int(left.max() - due.min()))) if len(left) else span_s
    return (len(due) - 1) / span_s, max(0, len(left) - 1) / sent_span_s
