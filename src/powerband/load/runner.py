"""Run a workload against a server: requests at their instants, or a fixed number in flight, until done or cut off."""

import asyncio
import contextlib
import gc
import resource
import secrets
import time
from collections.abc import Callable

from powerband.load.body import request_builder
from powerband.load.client import Client
from powerband.load.exchange import Exchange
from powerband.load.precise_loop import new_loop
from powerband.load.prompts import Prompts
from powerband.load.self_check import LoopWatch, check_client
from powerband.load.sse import DECODERS
from powerband.load.target import Loaded, Progress, StoppedBecause, Target
from powerband.load.tokens import find_tokens
from powerband.records.errors import RequestError
from powerband.records.metrics import tpot_s, ttft_s
from powerband.records.request import RequestTrace
from powerband.records.units import ns_to_s, s_to_ns
from powerband.records.workload import Workload

_PROGRESS_S = 1.0
_LEAD_NS = 20_000_000  # between the first line of the run and its first instant: time to be ready


def run_load(
    target: Target,
    workload: Workload,
    *,
    t0_ns: int,
    deadline_s: float,
    progress: Callable[[Progress], None] | None = None,
) -> Loaded:
    """Send the workload and record what came; trace times are ns after ``t0_ns`` (a time.monotonic_ns()).

    The schedule and ``deadline_s`` start when prompts are ready, shortly after the call. At the deadline answers under
    way and requests due but unsent become ``dropped``; requests that were not due yet leave no trace and a note.
    Ctrl-C does the same at once, with ``stopped_because="interrupted"``. Raises RequestError for an empty workload or
    a bad URL, EngineError where nothing answers at it.
    """
    if not workload.requests:
        raise RequestError("the workload holds no request", hint="check --traffic and --requests")
    source = find_tokens(target, workload.seed)
    prompts = Prompts(source.pool, workload, secrets.randbits(40), source.extra_tokens, source.tokens_per_unit)
    build = request_builder(target, source.as_ids)
    _raise_file_limit()

    def payload(index: int) -> bytes:
        return build(prompts.of(index), workload.requests[index].output_tokens)

    async def go() -> Loaded:
        run = _LoadRun(target, workload, payload, t0_ns, deadline_s, progress)
        return await run.execute(source.note)

    gc.collect()
    gc.freeze()
    gc.disable()  # a collection stops the clock for tens of ms; what a request leaves behind holds no cycle
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(go())
    finally:
        gc.enable()
        gc.unfreeze()


def _raise_file_limit() -> None:
    """One socket a request in flight: take what the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _LoadRun:
    """The state of one run: what was sent, what ended, and who may go next."""

    def __init__(
        self,
        target: Target,
        workload: Workload,
        payload: Callable[[int], bytes],
        t0_ns: int,
        deadline_s: float,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._target, self._workload, self._payload = target, workload, payload
        self._loop = asyncio.get_running_loop()
        self._client = Client(target, self._loop)
        self._decode = DECODERS[target.endpoint]
        self._t0_ns, self._progress = t0_ns, progress
        self._start_ns = time.monotonic_ns() + _LEAD_NS
        self._end_ns = self._start_ns + s_to_ns(deadline_s)
        self._sched_ns: dict[int, int] = {}  # absolute
        self._under_way: dict[int, Exchange] = {}
        self._traces: dict[int, RequestTrace] = {}
        self._how: dict[str, int] = {}
        self._lengths_off = 0
        self._finished = asyncio.Event()
        self._sent = self._errors = self._tokens = 0
        self._lately: list[RequestTrace] = []
        self._next = 0
        self._turns = _TurnOrder(workload)

    async def execute(self, note: str) -> Loaded:
        watch = LoopWatch(self._loop)
        stopped: StoppedBecause = "done"
        reporter = asyncio.create_task(self._report()) if self._progress else None
        self._timer = self._loop.call_later(ns_to_s(self._start_ns - time.monotonic_ns()), self._begin_all)
        try:
            left_s = ns_to_s(self._end_ns - time.monotonic_ns())
            await asyncio.wait_for(self._finished.wait(), max(0.0, left_s))
        except TimeoutError:
            stopped = "deadline"
        except asyncio.CancelledError:  # Ctrl-C: what there is, is reported
            stopped = "interrupted"
        cpu_ratio = watch.stop()
        end_ns = time.monotonic_ns()
        self._timer.cancel()
        if reporter is not None:
            reporter.cancel()
        self._client.close()
        self._drop_rest(end_ns)
        traces = tuple(self._traces[index] for index in sorted(self._traces))
        if stopped == "done":
            end_ns = max((t.t_end_ns or 0 for t in traces), default=0) + self._t0_ns
        check = check_client(traces, watch.lags_s, cpu_ratio, open_loop=self._workload.concurrency is None)
        return Loaded(traces, end_ns - self._t0_ns, check, self._notes(note, stopped), stopped)

    # who goes when

    def _begin_all(self) -> None:
        """The first instant has come: a closed loop fills its places, an open one goes by its schedule."""
        if self._workload.concurrency is None:
            self._send_due()
            return
        for _ in range(min(self._workload.concurrency, len(self._workload.requests))):
            self._start_next()

    def _send_due(self) -> None:
        """Open loop: begin all that is due, and come back when the next one is."""
        requests = self._workload.requests
        while self._next < len(requests):
            index = self._next
            due_ns = self._start_ns + requests[index].offset_ns
            if due_ns > self._end_ns:
                return
            now_ns = time.monotonic_ns()
            if due_ns > now_ns:
                self._timer = self._loop.call_at(self._loop.time() + ns_to_s(due_ns - now_ns), self._send_due)
                return
            self._next += 1
            self._sched_ns[index] = due_ns
            if index not in self._turns.waits or self._turns.waits[index] in self._traces:
                self._begin(index)

    def _start_next(self) -> None:
        """Closed loop: the next request whose session is free is due now."""
        while self._next < len(self._workload.requests):
            index, self._next = self._next, self._next + 1
            if index in self._turns.waits and self._turns.waits[index] not in self._traces:
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
            self._loop.call_later(self._target.timeout_s, self._time_out, index, exchange)

    def _time_out(self, index: int, exchange: Exchange) -> None:
        if not exchange.ended:
            exchange.time_out(self._target.timeout_s or 0.0)
            self._client.cut(exchange)

    def _ended(self, index: int, exchange: Exchange) -> None:
        self._under_way.pop(index, None)
        trace = self._trace(index, exchange, "ok" if exchange.error is None else "error")
        self._traces[index] = trace
        self._errors += exchange.error is not None
        self._tokens += trace.output_tokens
        self._lately.append(trace)
        if len(self._traces) == len(self._workload.requests):
            self._finished.set()
            return
        self._let_next_go(index)

    def _let_next_go(self, index: int) -> None:
        follower = self._turns.follower.get(index)
        if self._workload.concurrency is None:
            if follower is not None and follower in self._sched_ns and follower not in self._under_way:
                # a turn is due when its instant has come and the turn before it has ended
                self._sched_ns[follower] = max(self._sched_ns[follower], time.monotonic_ns())
                self._begin(follower)
        elif follower is not None and follower < self._next:
            self._sched_ns[follower] = time.monotonic_ns()
            self._begin(follower)
        else:
            self._start_next()

    # what came of it

    def _trace(self, index: int, exchange: Exchange, status: str) -> RequestTrace:
        times, counts, how = exchange.answer.settle()
        request = self._workload.requests[index]
        if status == "ok":
            self._how[how] = self._how.get(how, 0) + 1
            self._lengths_off += sum(counts) != request.output_tokens
        t0 = self._t0_ns
        return RequestTrace(
            index=index,
            status=status,  # type: ignore[arg-type]
            input_tokens=exchange.answer.prompt_tokens or request.input_tokens,
            output_tokens_asked=request.output_tokens,
            t_sched_ns=self._sched_ns[index] - t0,
            t_send_ns=None if exchange.t_send_ns is None else exchange.t_send_ns - t0,
            t_end_ns=None if exchange.t_end_ns is None else exchange.t_end_ns - t0,
            t_chunks_ns=tuple(t - t0 for t in times),
            chunk_tokens=counts,
            error=exchange.error,
        )

    def _drop_rest(self, end_ns: int) -> None:
        for index, exchange in self._under_way.items():
            exchange.stop()
            self._traces[index] = self._trace(index, exchange, "dropped")
        if self._workload.concurrency is not None:
            return
        for index, request in enumerate(self._workload.requests):
            due_ns = self._sched_ns.get(index, self._start_ns + request.offset_ns)
            if index not in self._traces and due_ns <= end_ns:
                self._sched_ns[index] = due_ns
                self._traces[index] = self._trace(index, Exchange(b"", self._decode, lambda done: None), "dropped")

    def _notes(self, note: str, stopped: StoppedBecause) -> tuple[str, ...]:
        notes = [note]
        unsent = len(self._workload.requests) - len(self._traces)
        if stopped != "done":
            what = {"deadline": "the deadline came", "interrupted": "stopped by hand"}.get(stopped, stopped)
            left = "not sent" if self._workload.concurrency is not None else "not due yet"
            notes.append(f"{what}: {unsent} of {len(self._workload.requests)} requests were {left} and are not counted")
        if self._how.get("unchecked"):
            notes.append(f"{self._how['unchecked']} answers came without a token count: one token a chunk assumed")
        if self._how.get("spread"):
            notes.append(
                f"{self._how['spread']} answers had chunks of several tokens; the total is the server's, "
                "its split over chunks is by length of text"
            )
        if self._how.get("fewer"):
            notes.append(
                f"{self._how['fewer']} answers had more chunks than tokens by the server's count, which is used"
            )
        if self._lengths_off:
            notes.append(f"{self._lengths_off} answers were not as long as asked (does the server know ignore_eos?)")
        return tuple(notes)

    async def _report(self) -> None:
        assert self._progress is not None
        while True:
            await asyncio.sleep(_PROGRESS_S)
            self._progress(self._state())

    def _state(self) -> Progress:
        lately, self._lately = self._lately, []
        elapsed_s = ns_to_s(time.monotonic_ns() - self._start_ns)
        ended, planned = len(self._traces), len(self._workload.requests)
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
            ttft_s=_median([ttft_s(t) for t in lately if t.status == "ok"]),
            tpot_s=_median([tpot_s(t) for t in lately if t.status == "ok"]),
            left_s=left_s if guess_s is None else min(guess_s, left_s),
        )


class _TurnOrder:
    """Which request each one waits for, and which follows it."""

    def __init__(self, workload: Workload) -> None:
        self.waits: dict[int, int] = {}
        self.follower: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, request in enumerate(workload.requests):
            if request.session is None:
                continue
            if request.session in last:
                self.waits[index] = last[request.session]
                self.follower[last[request.session]] = index
            last[request.session] = index


def _median(values: list[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None
