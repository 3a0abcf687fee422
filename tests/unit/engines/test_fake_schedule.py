"""Token times of the fake server against hand arithmetic: a loop whose clock the test turns."""

import asyncio
import heapq
import itertools
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.engines.fake_answer import Answer
from powerband.engines.fake_options import Options
from powerband.engines.fake_schedule import Batched, Counters, make_scheduler


class Clock:
    """The part of an event loop that a scheduler uses; ``run`` jumps from one timer to the next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, list[Any]]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any) -> Any:
        entry = [callback, args, when]
        heapq.heappush(self._timers, (when, next(self._order), entry))

        class Handle:
            def cancel(self) -> None:
                entry[0] = None

            def when(self) -> float:
                return when

        return Handle()

    def call_soon(self, callback: Any, *args: Any) -> Any:
        return self.call_at(self.now, callback, *args)

    def run(self, until: float = 1e9) -> None:
        while self._timers and self._timers[0][0] <= until:
            when, _, (callback, args, _) = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if callback is not None:
                callback(*args)


class Sink:
    def __init__(self) -> None:
        self.data = b""
        self.was_reset = self.was_finished = False

    def send(self, data: bytes, *, last: bool = False) -> None:
        self.data += data
        self.was_finished |= last

    def reset(self) -> None:
        self.was_reset = True


class Bench:
    """A scheduler with its clock; ``send`` submits a request now, ``times`` gives its token times in ms."""

    def __init__(self, **options: Any) -> None:
        self.options = Options(log_times="in memory", **options)
        self.clock, self.counters = Clock(), Counters()
        self.scheduler = make_scheduler(self.options, cast(asyncio.AbstractEventLoop, self.clock), self.counters)
        self.answers: list[Answer] = []

    def send(self, prompt_tokens: int, asked: int) -> Answer:
        answer = Answer(
            self.options, Sink(), index=len(self.answers), prompt_tokens=prompt_tokens, asked=asked, stream=True,
            chat=False, include_usage=True, ignore_eos=True, read_s=self.clock.now, on_over=lambda _: None,
        )  # fmt: skip
        self.answers.append(answer)
        self.scheduler.submit(answer)
        return answer

    def run(self, until_ms: float = 1e9) -> None:
        self.clock.run(until_ms / 1e3)
        self.clock.now = max(self.clock.now, min(until_ms / 1e3, 1e6))


def times_ms(answer: Answer) -> list[float]:
    return [round(when * 1e3, 3) for when in answer.times_s]


def test_timed_requests_do_not_wait_for_each_other() -> None:
    bench = Bench(mode="timed", ttft_ms=20, itl_ms=5)
    first = bench.send(100, 3)
    bench.run(7)
    second = bench.send(1, 2)
    bench.run()
    assert times_ms(first) == [20, 25, 30]
    assert times_ms(second) == [27, 32]
    assert bench.counters.prefill_s == pytest.approx(0.040)
    assert bench.counters.decode_s == pytest.approx(0.015)


def test_one_slot_serves_one_after_the_other() -> None:
    # A step is 10 + 1 per decoding sequence + 1 per prompt token, in ms. First: prefill of 20 in a step of 10 + 20,
    # then two decode steps of 11. Second: begins when the first has ended.
    bench = Bench(slots=1, step_ms=10, step_ms_per_seq=1, prefill_tokens_per_s=1000)
    first, second = bench.send(20, 3), bench.send(5, 2)
    bench.run()
    assert times_ms(first) == [30, 41, 52]
    assert times_ms(second) == [52 + 15, 52 + 15 + 11]
    assert bench.counters.steps == 5


def test_slots_share_steps_and_prefill_rides_along() -> None:
    bench = Bench(slots=4, step_ms=10, step_ms_per_seq=1, prefill_tokens_per_s=1000)
    first = bench.send(20, 3)
    bench.run(31)  # the first token came at 30, a decode step to 41 is on its way
    second = bench.send(10, 2)
    bench.run()
    assert times_ms(first) == [30, 41, 41 + 10 + 1 + 10]
    assert times_ms(second) == [62, 62 + 11]


def test_chunked_prefill_spreads_a_long_prompt_over_steps() -> None:
    # 25 prompt tokens by 10 a step: 20, 20, then 10 + 5.
    bench = Bench(slots=1, step_ms=10, step_ms_per_seq=0, prefill_tokens_per_s=1000, chunk_tokens=10)
    answer = bench.send(25, 2)
    bench.run()
    assert times_ms(answer) == [55, 65]


def test_tokenizer_is_serial() -> None:
    bench = Bench(slots=8, step_ms=10, step_ms_per_seq=0, prefill_tokens_per_s=1e9, tokenizer_ms=100)
    first, second = bench.send(1, 1), bench.send(1, 1)
    bench.run()
    assert times_ms(first) == [110]
    assert times_ms(second) == [210]


def test_a_static_batch_is_held_until_its_longest_answer_ends() -> None:
    shared: dict[str, Any] = {"slots": 2, "step_ms": 10, "step_ms_per_seq": 0, "prefill_tokens_per_s": 1e9}
    for static, third_starts in ((True, 50), (False, 20)):
        bench = Bench(static=static, **shared)
        bench.send(1, 2)
        bench.send(1, 5)
        third = bench.send(1, 1)
        bench.run()
        assert times_ms(third) == [third_starts + 10]


def test_a_full_pool_preempts_the_youngest_and_computes_it_again() -> None:
    # Two requests of 4 + 4 tokens in a pool of 12: both fit at first, not to the end.
    bench = Bench(slots=2, step_ms=10, step_ms_per_seq=0, prefill_tokens_per_s=1e9, kv_tokens=12)
    old, young = bench.send(4, 4), bench.send(4, 4)
    bench.run()
    assert bench.counters.preemptions == 1
    assert times_ms(old) == [10, 20, 30, 40]  # never disturbed
    # Both hold 5 + 1 = 6 after the first token: full. After the second, 7 + 7 > 12: the young one leaves at 20 ms
    # with 2 tokens out, comes back when the old one has ended at 40, and computes its 6 tokens again.
    assert times_ms(young) == [10, 20, 50, 60]


def test_a_queueing_pool_lets_in_what_fits_to_the_end() -> None:
    bench = Bench(slots=4, step_ms=10, step_ms_per_seq=0, prefill_tokens_per_s=1e9, kv_tokens=12, kv_policy="queue")
    first, second = bench.send(4, 4), bench.send(4, 4)
    bench.run()
    assert bench.counters.preemptions == 0
    assert times_ms(first) == [10, 20, 30, 40]
    assert times_ms(second) == [50, 60, 70, 80]


def test_a_client_that_went_away_frees_its_slot() -> None:
    bench = Bench(slots=1, step_ms=10, step_ms_per_seq=0, prefill_tokens_per_s=1e9)
    first, second = bench.send(1, 100), bench.send(1, 1)
    bench.run(25)
    first.cancel()
    bench.run()
    assert len(first.times_s) == 2
    assert times_ms(second) == [40]


def test_several_tokens_in_one_chunk() -> None:
    bench = Bench(mode="timed", ttft_ms=10, itl_ms=5, tokens_per_chunk=3)
    answer = bench.send(1, 7)
    bench.run()
    assert times_ms(answer) == [10, 15, 20]
    assert answer.sent == 7


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.floats(0, 0.2), st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=12),
    slots=st.integers(1, 5),
    chunk=st.integers(1, 64),
    pool=st.one_of(st.just(0), st.integers(60, 200)),
    static=st.booleans(),
    policy=st.sampled_from(["preempt", "queue"]),
)
def test_every_token_is_sent_once_in_order_and_the_limits_hold(
    requests: list[tuple[float, int, int]], slots: int, chunk: int, pool: int, static: bool, policy: str
) -> None:
    bench = Bench(slots=slots, chunk_tokens=chunk, kv_tokens=pool, static=static, kv_policy=policy, step_ms=3)
    scheduler = bench.scheduler
    assert isinstance(scheduler, Batched)
    for when, prompt, asked in sorted(requests):
        bench.run(when * 1e3)
        bench.send(prompt, asked)
        assert bench.counters.running <= slots
        assert pool == 0 or bench.counters.kv_used_tokens <= pool
    bench.run()
    for answer in bench.answers:
        assert answer.sent == answer.asked == len(answer.times_s)
        assert answer.times_s == sorted(answer.times_s)
        assert answer.times_s[0] > answer.read_s
    assert bench.counters.output_tokens == bench.counters.finished_tokens == sum(a.asked for a in bench.answers)
    assert (bench.counters.running, bench.counters.waiting) == (0, 0)
