"""When the fake server's tokens are due: each request alone at exact times, or batched steps over slots."""

import heapq
import itertools
import math
from asyncio import AbstractEventLoop, Handle, TimerHandle
from collections import deque
from dataclasses import dataclass

from powerband.engines.fake_answer import Answer
from powerband.engines.fake_options import Options

# The share of a step that is left when the weights take 16, 8 or 4 bits: a decode step mostly reads them.
STEP_SHARE = {16: 1.0, 8: 0.75, 4: 0.5}


@dataclass(slots=True)
class Counters:
    """What /metrics tells; counters only rise.

    Seconds are request-seconds, as both engines count them: overlapping requests each count. llama.cpp adds a prompt
    when its answer begins and the answer when it ends; vLLM counts tokens by step and seconds at the end.
    """

    running: int = 0
    waiting: int = 0
    kv_used_tokens: int = 0
    prompt_tokens: int = 0  # of answers that have begun
    output_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    finished: int = 0
    finished_tokens: int = 0
    finished_prefill_s: float = 0.0
    steps: int = 0
    busy_slots: int = 0  # summed over steps
    preemptions: int = 0
    longest_tokens: int = 0

    def sent(self, answer: Answer, tokens: int, due_s: float) -> None:
        """``tokens`` of an answer went out at ``due_s``; the first of them ends its prefill."""
        self.output_tokens += tokens
        if answer.first_s is None and tokens:
            answer.first_s = due_s
            self.prompt_tokens += answer.prompt_tokens
            self.prefill_s += due_s - answer.started_s

    def ended(self, answer: Answer, due_s: float) -> None:
        self.finished += 1
        self.finished_tokens += answer.sent
        if answer.first_s is not None:
            self.finished_prefill_s += answer.first_s - answer.started_s
            self.decode_s += due_s - answer.first_s


class Timed:
    """Every request alone: chunk k is due ``ttft_ms + k * itl_ms`` after the request was read."""

    def __init__(self, options: Options, loop: AbstractEventLoop, counters: Counters) -> None:
        self._loop, self._counters = loop, counters
        self._ttft_s, self._itl_s = options.ttft_ms / 1e3, options.itl_ms / 1e3
        self._chunk = options.tokens_per_chunk
        self._due: list[tuple[float, int, Answer]] = []
        self._order = itertools.count()
        self._timer: TimerHandle | None = None

    def submit(self, answer: Answer) -> None:
        self._counters.running += 1
        heapq.heappush(self._due, (answer.read_s + self._ttft_s, next(self._order), answer))
        self._arm()

    def _arm(self) -> None:
        """One timer for the earliest token of all requests."""
        if not self._due:
            return
        when = self._due[0][0]
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now, due, counters = self._loop.time(), self._due, self._counters
        while due and due[0][0] <= now:
            when, order, answer = due[0]
            before = answer.sent
            over = answer.emit(self._chunk, when)
            counters.sent(answer, answer.sent - before, when)
            if over:
                heapq.heappop(due)
                counters.running -= 1
                counters.ended(answer, when)
            else:
                heapq.heapreplace(due, (when + self._itl_s, order, answer))
        self._arm()


class Batched:
    """Steps over slots: a step decodes one chunk for every running sequence and prefills up to ``chunk_tokens``.

    Its length is ``step_ms + step_ms_per_seq * decoding + prefilled / prefill_tokens_per_s``; tokens come at its end,
    and the next step starts at that same instant. The first token of an answer comes at the end of the step that
    completes its prompt. A full KV pool preempts the youngest sequence, which is computed again (as vLLM does), or,
    with ``kv_policy="queue"``, room for the whole answer is kept before a request is let in.
    """

    def __init__(self, options: Options, loop: AbstractEventLoop, counters: Counters) -> None:
        self._options, self._loop, self._counters = options, loop, counters
        self._pool = options.kv_tokens or math.inf
        self._waiting: deque[Answer] = deque()
        self._running: list[Answer] = []
        self._held = 0  # slots of a static batch that have ended and are kept until all have
        self._tokenizer_free_s = 0.0
        self._timer: Handle | None = None

    def submit(self, answer: Answer) -> None:
        host_s = (self._options.tokenizer_ms + (self._options.text_ms if answer.as_text else 0.0)) / 1e3
        if not host_s:
            self._enqueue(answer)
            return
        start = max(self._loop.time(), self._tokenizer_free_s)
        self._tokenizer_free_s = start + host_s
        self._loop.call_at(self._tokenizer_free_s, self._enqueue, answer)

    def _enqueue(self, answer: Answer) -> None:
        self._waiting.append(answer)
        if self._timer is None:
            # Requests that arrive in the same turn of the loop share the first step.
            self._timer = self._loop.call_soon(self._begin, self._loop.time())
        self._count()

    def _begin(self, now_s: float) -> None:
        """Let requests in, decide what the step holds, and set its end."""
        self._timer = None
        self._running = [answer for answer in self._running if not answer.gone]
        self._admit(now_s)
        if not self._running:
            self._count()
            return
        decoding = self._make_room([answer for answer in self._running if answer.prefilled >= answer.context])
        prefill = self._plan_prefill()
        options = self._options
        prefill_s = sum(prefill.values()) / options.prefill_tokens_per_s
        decode_s = STEP_SHARE[options.bits] * (options.step_ms + options.step_ms_per_seq * len(decoding)) / 1e3
        self._counters.steps += 1
        self._counters.busy_slots += len(self._running)
        self._count()
        end = now_s + decode_s + prefill_s
        self._timer = self._loop.call_at(end, self._end, end, decoding, prefill)

    def _end(self, end_s: float, decoding: list[Answer], prefill: dict[Answer, int]) -> None:
        ready = list(decoding)
        for answer, tokens in prefill.items():
            answer.prefilled += tokens
            if answer.prefilled >= answer.context:
                ready.append(answer)
        for answer in ready:
            before = answer.sent
            over = answer.emit(self._options.tokens_per_chunk, end_s)
            new = answer.sent - before
            answer.context += new
            answer.prefilled += new
            self._counters.sent(answer, new, end_s)
            self._counters.longest_tokens = max(self._counters.longest_tokens, answer.context)
            if over:
                self._leave(answer)
                self._counters.ended(answer, end_s)
        self._begin(end_s)

    def _leave(self, answer: Answer) -> None:
        if answer in self._running:
            self._running.remove(answer)
        if self._options.static:
            self._held = self._held + 1 if self._running else 0

    def _admit(self, now_s: float) -> None:
        if not self._running:
            self._held = 0
        elif self._options.static:
            return
        while self._waiting and len(self._running) + self._held < self._options.slots:
            answer = self._waiting[0]
            if answer.gone:
                self._waiting.popleft()
                continue
            if self._reserved() + self._needs(answer) > self._pool:
                return
            self._waiting.popleft()
            answer.prefilled = 0
            if answer.first_s is None:
                answer.started_s = now_s
            self._running.append(answer)

    def _needs(self, answer: Answer) -> int:
        if self._options.kv_policy == "queue":
            return answer.prompt_tokens + answer.stop_at
        return answer.context + 1

    def _reserved(self) -> int:
        return sum(self._needs(answer) for answer in self._running)

    def _make_room(self, decoding: list[Answer]) -> list[Answer]:
        """Preempt the youngest while this step's new tokens do not fit; a preempted one is computed anew."""
        while len(self._running) > 1 and self._reserved() > self._pool:
            youngest = self._running.pop()
            youngest.prefilled = 0
            self._counters.preemptions += 1
            self._waiting.appendleft(youngest)
        return [answer for answer in decoding if answer.prefilled >= answer.context]

    def _plan_prefill(self) -> dict[Answer, int]:
        left, plan = self._options.chunk_tokens, {}
        for answer in self._running:
            tokens = min(left, answer.context - answer.prefilled)
            if tokens > 0:
                plan[answer] = tokens
                left -= tokens
        return plan

    def _count(self) -> None:
        counters = self._counters
        counters.running = len(self._running)
        counters.waiting = len(self._waiting)
        counters.kv_used_tokens = sum(answer.prefilled for answer in self._running)


def make_scheduler(options: Options, loop: AbstractEventLoop, counters: Counters) -> Timed | Batched:
    return (Timed if options.mode == "timed" else Batched)(options, loop, counters)
