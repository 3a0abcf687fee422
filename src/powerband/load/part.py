"""What one process does of a run: requests at their instants, or a fixed number in flight, until done or cut off."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from powerband.load.client import Client
from powerband.load.exchange import Exchange
from powerband.load.self_check import LoopWatch
from powerband.load.sse import DECODERS
from powerband.load.stop_rules import Stop, StopRules
from powerband.load.target import Progress, StoppedBecause, Target
from powerband.load.trace_log import TraceLog, part_log
from powerband.records.metrics import tpot_s, ttft_s
from powerband.records.request import RequestStatus, RequestTrace
from powerband.records.units import ns_to_s, s_to_ns
from powerband.records.workload import Workload

_PROGRESS_S = 1.0
_SENT_AT_ONCE = 64  # then bytes that have come are read, and only then more is sent
_SHOWN = 200  # answers whose medians are shown: more would hold up those under way
_ENDED, _DROPPED = 1, 2


class Job(msgspec.Struct):
    """A run, and which of its ``shares`` parts is meant; all times are of the machine's monotonic clock.

    ``salt`` makes the prompts of this run its own; ``t0_ns`` is the zero of the traces.
    """

    target: Target
    workload: Workload
    salt: int
    t0_ns: int
    deadline_s: float
    share: int = 0
    shares: int = 1
    stop: Stop = msgspec.field(default_factory=Stop)
    trace_log: str | None = None


class PartResult(msgspec.Struct):
    """What came of a part; ``how`` counts answers by how their tokens are known (Answer.settle).

    ``traces`` are empty where the job has a trace log; ``records`` were made either way.
    """

    traces: list[RequestTrace]
    records: int
    end_ns: int
    lags_s: list[float]
    cpu_ratio: float
    stopped: StoppedBecause
    how: dict[str, int]
    lengths_off: int
    prompts_off: int  # prompts that the server counts as longer or shorter than asked, and by how much at most
    most_off_tokens: int
    why: str = ""


def share_of(workload: Workload, share: int, shares: int) -> Sequence[int]:
    """The requests of one part: every ``shares``-th, sessions kept whole."""
    if all(request.session is None for request in workload.requests):
        return range(share, len(workload.requests), shares)
    return [
        index
        for index, request in enumerate(workload.requests)
        if (index if request.session is None else request.session) % shares == share
    ]


def _places(job: Job) -> int:
    """This part's share of the closed loop's requests in flight."""
    places = job.workload.concurrency or 0
    return places // job.shares + (job.share < places % job.shares)


class Part:
    """What one process does of a run: what was sent, what ended, and who may go next."""

    def __init__(
        self, job: Job, payload: Callable[[int], bytes], on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._job, self._target, self._workload, self._payload = job, job.target, job.workload, payload
        self._loop = asyncio.get_running_loop()
        self._client = Client(job.target, self._loop, patient=job.workload.concurrency is None)
        self._decode = DECODERS[job.target.endpoint]
        self._on_progress = on_progress
        self._start_ns = self._end_ns = 0  # the schedule's zero, and when the run is cut off
        self._mine = share_of(job.workload, job.share, job.shares)
        self._places = _places(job)
        self._sched_ns: dict[int, int] = {}  # absolute
        self._under_way: dict[int, Exchange] = {}
        self._came = bytearray(len(job.workload.requests))  # _ENDED or _DROPPED once there is a trace
        self._time_outs: deque[tuple[float, int]] = deque()  # equal delays: the first in is the first due
        self._how: dict[str, int] = {}
        self._finished = asyncio.Event()
        self._stopped: StoppedBecause = "done"
        self._sent = self._records = self._errors = self._tokens = self._lengths_off = self._last_end_ns = 0
        self._prompts_off = self._most_off_tokens = 0
        self._lately: list[RequestTrace] = []
        self._next, self._precise, self._over = 0, False, False
        self._turns = TurnOrder(job.workload, self._mine)
        self._traces: list[RequestTrace] = []
        self._log = TraceLog(part_log(Path(job.trace_log), job.share)) if job.trace_log else None
        self._keep = self._traces.append if self._log is None else self._log.add
        self._rules = StopRules(job.stop, open_loop=job.workload.concurrency is None)

    async def execute(self, start_ns: int) -> PartResult:
        """Run it; ``start_ns`` is the schedule's zero."""
        self._start_ns, self._end_ns = start_ns, start_ns + s_to_ns(self._job.deadline_s)
        watch = LoopWatch(self._loop)
        reporter = asyncio.create_task(self._report())
        reporter.add_done_callback(lambda _: self._finished.set())  # without it no rule would end the run
        self._timer = self._loop.call_later(ns_to_s(self._start_ns - time.monotonic_ns()), self._begin_all)
        try:
            if self._mine:
                left_s = ns_to_s(self._end_ns - time.monotonic_ns())
                await asyncio.wait_for(self._finished.wait(), max(0.0, left_s))
        except TimeoutError:
            self._stopped = "precise_enough" if self._precise else "deadline"
        except asyncio.CancelledError:  # Ctrl-C: what there is, is reported
            self._stopped = "interrupted"
        cpu_ratio = watch.stop()
        end_ns = time.monotonic_ns()
        self._timer.cancel()
        reporter.cancel()
        self._over = True
        self._client.settle_all()
        self._client.close()
        self._drop_rest(end_ns)
        if self._log is not None:
            self._log.close()
        if reporter.done() and not reporter.cancelled() and (failed := reporter.exception()) is not None:
            raise failed
        if self._stopped == "done":
            end_ns = self._last_end_ns + self._job.t0_ns
        return PartResult(
            traces=self._traces,
            records=self._records,
            end_ns=end_ns - self._job.t0_ns,
            lags_s=watch.lags_s.tolist(),
            cpu_ratio=cpu_ratio,
            stopped=self._stopped,
            how=self._how,
            lengths_off=self._lengths_off,
            prompts_off=self._prompts_off,
            most_off_tokens=self._most_off_tokens,
            why=self._rules.why,
        )

    # who goes when

    def _begin_all(self) -> None:
        """The first instant has come: a closed loop fills its places, an open one goes by its schedule."""
        if self._workload.concurrency is None:
            self._send_due()
            return
        for _ in range(min(self._places, len(self._mine))):
            self._start_next()

    def _send_due(self) -> None:
        """Open loop: begin what is due, and come back when the next one is; who is behind must also read."""
        requests = self._workload.requests
        until = self._next + _SENT_AT_ONCE
        while self._next < len(self._mine):
            if self._next == until:
                self._timer = self._loop.call_later(0, self._send_due)
                return
            index = self._mine[self._next]
            due_ns = self._start_ns + requests[index].offset_ns
            if due_ns > self._end_ns:
                return
            now_ns = time.monotonic_ns()
            if due_ns > now_ns:
                self._timer = self._loop.call_at(self._loop.time() + ns_to_s(due_ns - now_ns), self._send_due)
                return
            self._next += 1
            self._sched_ns[index] = due_ns
            if index not in self._turns.waits or self._came[self._turns.waits[index]]:
                self._begin(index)

    def _start_next(self) -> None:
        """Closed loop: the next request whose session is free is due now."""
        while self._next < len(self._mine):
            index, self._next = self._mine[self._next], self._next + 1
            if index in self._turns.waits and not self._came[self._turns.waits[index]]:
                continue  # it goes when its earlier turn has ended
            self._sched_ns[index] = time.monotonic_ns()
            self._begin(index)
            return

    def _begin(self, index: int) -> None:
        exchange = Exchange(self._payload(index), self._decode, lambda done: self._ended(index, done))
        self._under_way[index] = exchange
        self._sent += 1
        self._client.send(exchange)
        if self._target.timeout_s is not None:
            self._time_outs.append((self._loop.time() + self._target.timeout_s, index))
            if len(self._time_outs) == 1:
                self._loop.call_at(self._time_outs[0][0], self._time_out)

    def _time_out(self) -> None:
        """Cut what has taken too long, forget what has ended, and come back for the first of the others."""
        now = self._loop.time()
        while self._time_outs and not self._over:
            due, index = self._time_outs[0]
            exchange = self._under_way.get(index)
            if exchange is not None and due > now:
                self._loop.call_at(due, self._time_out)
                return
            if exchange is not None:
                exchange.time_out(self._target.timeout_s or 0.0)
                self._client.cut(exchange)
            self._time_outs.popleft()

    def _ended(self, index: int, exchange: Exchange) -> None:
        self._under_way.pop(index, None)
        trace = self._take_down(index, exchange, "ok" if exchange.error is None else "error")
        self._errors += exchange.error is not None
        self._tokens += trace.output_tokens
        self._last_end_ns = max(self._last_end_ns, trace.t_end_ns or 0)
        self._lately.append(trace)
        if self._records == len(self._mine) or (self._stopped != "done" and not self._under_way):
            self._finished.set()
        elif exchange.error is None:
            self._let_next_go(index, exchange.t_end_ns or 0)
        else:  # a dead server refuses at once, inside send: its next one goes by way of the loop, or they would nest
            self._loop.call_soon(self._let_next_go, index, exchange.t_end_ns or 0)

    def _let_next_go(self, index: int, ended_ns: int) -> None:
        """A turn is due when its instant (its place in a closed loop) has come and the turn before it has ended."""
        if self._over:
            return
        follower = self._turns.follower.get(index)
        if self._workload.concurrency is None:
            if follower is not None and follower in self._sched_ns:
                self._sched_ns[follower] = max(self._sched_ns[follower], ended_ns)  # and was parsed a little later
                self._begin(follower)
        elif follower is not None and (self._next == len(self._mine) or follower < self._mine[self._next]):
            self._sched_ns[follower] = time.monotonic_ns()
            self._begin(follower)
        else:
            self._start_next()

    # what came of it

    def _take_down(self, index: int, exchange: Exchange, status: RequestStatus) -> RequestTrace:
        """Make the record of a request and let go of the rest."""
        times, counts, how = exchange.answer.settle()
        request = self._workload.requests[index]
        if status == "ok":
            self._how[how] = self._how.get(how, 0) + 1
            self._lengths_off += sum(counts) != request.output_tokens
            off = abs((exchange.answer.prompt_tokens or request.input_tokens) - request.input_tokens)
            self._prompts_off += off > 0
            self._most_off_tokens = max(self._most_off_tokens, off)
        t0 = self._job.t0_ns
        self._came[index] = _DROPPED if status == "dropped" else _ENDED
        self._records += 1
        trace = RequestTrace(
            index=index,
            status=status,
            input_tokens=exchange.answer.prompt_tokens or request.input_tokens,
            output_tokens_asked=request.output_tokens,
            t_sched_ns=self._sched_ns.pop(index) - t0,
            t_send_ns=None if exchange.t_send_ns is None else exchange.t_send_ns - t0,
            t_end_ns=None if exchange.t_end_ns is None else exchange.t_end_ns - t0,
            t_chunks_ns=tuple(t - t0 for t in times),
            chunk_tokens=counts,
            error=exchange.error,
        )
        self._keep(trace)
        return trace

    def _drop_rest(self, end_ns: int) -> None:
        """What is under way, and what was due and not begun, is dropped; a turn is not due before the one before it."""
        for index, exchange in self._under_way.items():
            exchange.stop()
            self._take_down(index, exchange, "dropped")
        if self._workload.concurrency is not None or self._precise:
            return
        for index in self._mine:
            due_ns = self._sched_ns.get(index, self._start_ns + self._workload.requests[index].offset_ns)
            waits = index in self._turns.waits and self._came[self._turns.waits[index]] != _ENDED
            if not self._came[index] and due_ns <= end_ns and not waits:
                self._sched_ns[index] = due_ns
                self._take_down(index, Exchange(b"", self._decode, lambda done: None), "dropped")

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            state, lately = self._state(), self._lately
            self._lately = []
            if self._on_progress is not None:
                try:
                    self._on_progress(state)
                except OSError:  # a terminal that is gone, a system without a free file: the run and its rules go on
                    self._on_progress = None
            if self._stopped == "done" and (reason := self._rules.check(state, lately)) is not None:
                self._stop_early(reason)

    def _stop_early(self, reason: StoppedBecause) -> None:
        """Precise enough: send no more and wait for the answers under way, so that none is cut off. Else end now."""
        self._stopped, self._precise = reason, reason == "precise_enough"
        self._timer.cancel()
        self._next = len(self._mine)
        self._turns.follower.clear()
        if not self._precise or not self._under_way:
            self._finished.set()

    def _state(self) -> Progress:
        lately = [trace for trace in self._lately[-_SHOWN:] if trace.status == "ok"]
        elapsed_s = ns_to_s(time.monotonic_ns() - self._start_ns)
        ended, planned = self._records, len(self._mine)
        guess_s = elapsed_s * (planned - ended) / ended if ended else None
        left_s = ns_to_s(self._end_ns - time.monotonic_ns())
        return Progress(
            elapsed_s=elapsed_s,
            planned=planned,
            sent=self._sent,
            completed=ended - self._errors,
            errors=self._errors,
            in_flight=len(self._under_way),
            output_tokens=self._tokens,
            ttft_s=_median([ttft_s(t) for t in lately]),
            tpot_s=_median([tpot_s(t) for t in lately]),
            left_s=left_s if guess_s is None else min(guess_s, left_s),
        )


class TurnOrder:
    """Which request each one waits for, and which follows it."""

    def __init__(self, workload: Workload, mine: Sequence[int]) -> None:
        self.waits: dict[int, int] = {}
        self.follower: dict[int, int] = {}
        last: dict[int, int] = {}
        for index in mine:
            session = workload.requests[index].session
            if session is None:
                continue
            if session in last:
                self.waits[index] = last[session]
                self.follower[last[session]] = index
            last[session] = index


def _median(values: list[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None
