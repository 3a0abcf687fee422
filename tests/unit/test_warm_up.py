"""The warm-up by counts and times of its own, with a server that is one function."""

import math

import pytest

from powerband import warm_up
from powerband.records.workload import RequestSpec, Workload

NS = 1_000_000_000


def closed(count: int, concurrency: int) -> Workload:
    spec = RequestSpec(offset_ns=0, input_tokens=100, output_tokens=10)
    return Workload(requests=(spec,) * count, source="test", concurrency=concurrency)


def test_what_will_be_in_flight() -> None:
    assert warm_up.in_flight(closed(100, 64)) == 64
    assert warm_up.in_flight(closed(10, 64)) == 10
    assert warm_up.in_flight(closed(1000, 900)) == 256
    # 10 requests/s whose 30 tokens at an assumed 50 ms, after half a second, keep each for 2 s: 20 at once.
    spread = tuple(RequestSpec(offset_ns=k * NS // 10, input_tokens=8, output_tokens=30) for k in range(101))
    assert warm_up.in_flight(Workload(requests=spread, source="test")) == 20


def test_sizes_end_with_what_is_asked() -> None:
    assert warm_up._sizes(1, 1, 2) == [1]
    assert warm_up._sizes(1, 64, 2) == [1, 2, 4, 8, 16, 32, 64]
    assert warm_up._sizes(1, 48, 2) == [1, 2, 4, 8, 16, 32, 48]
    assert warm_up._sizes(64, 2000, 4) == [64, 256, 1024, 2000]
    assert warm_up._sizes(64, 20, 4) == []


class Server:
    """Answers ``size`` requests in ``seconds(size)``, plus ``compile_s`` the first ``compiles`` times a size comes."""

    def __init__(self, base_s: float, each_s: float = 0.0, compile_s: float = 0.0, compiles: int = 1) -> None:
        self.base_s, self.each_s, self.compile_s, self.compiles = base_s, each_s, compile_s, compiles
        self.sent: list[int] = []

    def __call__(self, size: int) -> float:
        self.sent.append(size)
        seen = self.sent.count(size) - 1
        return self.base_s + self.each_s * size + self.compile_s * max(0, self.compiles - seen)


def climb(server: Server, top: int) -> warm_up.Climb:
    made = warm_up.Climb()
    made.up(server, warm_up._sizes(1, top, 2), 3.0, "in flight", saturates=True)
    return made


def test_an_engine_that_batches_meets_every_size_once() -> None:
    server = Server(0.1)
    made = climb(server, 64)
    assert (made.notes, made.compiled) == ([], False)
    assert server.sent == [1, 2, 4, 8, 16, 32, 64]


def test_an_engine_that_serves_one_at_a_time_is_asked_for_two() -> None:
    server = Server(0.0, each_s=0.2)
    made = climb(server, 64)
    assert (made.notes, made.compiled) == ([], False)
    assert server.sent == [1, 2]


def test_a_slow_engine_is_not_held_up() -> None:
    server = Server(1.0, each_s=0.6)  # 1.6, 2.2: two more steps would take seconds
    assert climb(server, 256).notes == []
    assert sum(map(Server(1.0, each_s=0.6), server.sent)) < 6.0


def test_a_size_that_compiles_is_sent_again_and_its_time_does_not_end_the_ramp() -> None:
    server = Server(0.1, compile_s=3.0)
    made = climb(server, 8)
    assert (made.notes, made.compiled) == ([], True)
    assert server.sent == [1, 1, 2, 2, 4, 4, 8, 8]


def test_one_that_still_compiles_at_the_end_says_so() -> None:
    times = iter([0.1, 0.1, 9.0, 4.0, 1.0])
    made = warm_up.Climb()
    made.up(lambda _: next(times), [1, 2, 4], 3.0, "in flight")
    assert len(made.notes) == 1
    assert made.notes[0].startswith("not warm: 4 in flight took 9")


def test_time_that_is_over_ends_the_ramp_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_UNTIL_S", -1.0)
    assert climb(Server(0.1), 2).notes == ["warmed up to 0 of 2 in flight only: it compiled for -1 s"]


def test_requests_that_fail_end_the_ramp() -> None:
    sent: list[int] = []

    def fails(size: int) -> float:
        sent.append(size)
        return math.inf

    made = warm_up.Climb()
    made.up(fails, [1, 2, 4], 3.0, "in flight")
    assert (made.notes, sent) == ([], [1])


def test_the_rehearsal_has_the_workloads_prompts_and_a_limit() -> None:
    workload = closed(100, 8)  # prompts of 100 tokens, answers of 10
    own = warm_up.rehearsal(workload, 16, 1e-4)
    assert [request.input_tokens for request in own] == [100] * 16
    assert [request.output_tokens for request in own] == [1, 2, 3, 4, 5, 6, 7, 8] * 2
    # A prompt at 10 ms a token takes a second: three of them.
    assert len(warm_up.rehearsal(workload, 16, 1e-2)) == 3


@pytest.mark.parametrize(("took", "reference", "close"), [(1.7, 1.0, True), (1.8, 1.0, False), (0.2, 0.0, True)])
def test_close(took: float, reference: float, close: bool) -> None:
    assert warm_up._close(took, reference) is close
