"""The process in front of an engine, against times worked out by hand; and steps that are made up ahead."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from powerband.records.config import EngineConfig
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.front_end import TURN, FrontEnd
from powerband.simulate.loop import simulate
from powerband.simulate.scheduler import Limits
from powerband.simulate.step_time import StepTime


def front(request_s: float = 0.0, front_request_s: float = 3.0, front_token_s: float = 1.0) -> FrontEnd:
    clock: Any = SimpleNamespace(request_s=request_s, front_request_s=front_request_s, front_token_s=front_token_s)
    return FrontEnd(clock)


def handed_out(end: FrontEnd, steps: int) -> list[float]:
    """When the tokens of each step were handed out, from the segments."""
    segments = [end.segments[place : place + 4] for place in range(0, len(end.segments), 4)]
    times = []
    for step in range(1, steps + 1):
        before, start_s, first_s, growth_s = [segment for segment in segments if segment[0] < step][-1]
        k = step - before
        times.append(start_s + k * first_s + growth_s * k * (k - 1) / 2)
    return times


@given(
    comes_s=st.lists(st.sampled_from([0.7, 5.1, 21.3]) | st.floats(0.0, 60.0), max_size=30).map(sorted),
    runs=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=4),
    first_s=st.floats(0.2, 3.0),
    growth_s=st.sampled_from([0.0, 0.013, 0.31]),
    request_s=st.floats(0.0, 4.0),
    token_s=st.floats(0.001, 1.0),
)
def test_runs_of_steps_are_handed_out_as_step_after_step(
    comes_s: list[float],
    runs: list[tuple[int, int]],
    first_s: float,
    growth_s: float,
    request_s: float,
    token_s: float,
) -> None:
    end = front(front_request_s=request_s, front_token_s=token_s)
    for index, at_s in enumerate(comes_s):
        end.come(index, at_s)
    now, step = 1.0, 0
    steps_s: list[tuple[float, float]] = []  # when each ends, and how long its tokens take
    for steps, tokens in runs:
        end.hand_out(step, steps, now, first_s, growth_s, tokens)
        ends_s = [now + k * first_s + growth_s * k * (k - 1) / 2 for k in range(1, steps + 1)]
        steps_s += [(end_s, tokens * token_s) for end_s in ends_s]
        now, step = ends_s[-1], step + steps
    free_s, waiting = 0.0, list(comes_s)
    taken_in_s, handed_s = [], []
    for end_s, takes_s in steps_s:
        turn = TURN
        while waiting and waiting[0] <= end_s and (free_s <= end_s or turn):
            turn -= free_s > end_s
            free_s = max(free_s, waiting.pop(0)) + request_s
            taken_in_s.append(free_s)
        assume(all(abs(instant_s - end_s) > 1e-6 for instant_s in (*comes_s, *taken_in_s)))
        free_s = max(free_s, end_s) + takes_s
        handed_s.append(free_s)
    assert handed_out(end, step) == pytest.approx(handed_s, abs=1e-6)
    end.take_in(math.inf)
    for ready_s in taken_in_s:
        assert end.next_ready_s() == pytest.approx(ready_s, abs=1e-6)
        assert end.ready(math.inf) is not None


def test_requests_are_taken_in_one_after_the_other() -> None:
    end = front(request_s=0.5)
    for index in range(3):
        end.come(index, 10.0)
    assert end.next_ready_s() == 13.5
    end.take_in(12.9)
    assert end.next_ready_s() == 13.5  # and busy with it until 13
    end.take_in(16.0)
    assert (end.ready(13.4), end.ready(13.5), end.ready(16.4), end.ready(16.5)) == (None, 0, None, 1)
    assert (len(end), end.next_ready_s()) == (1, 19.5)


def test_without_costs_a_request_is_ready_at_once() -> None:
    end = front(request_s=0.5, front_request_s=0.0, front_token_s=0.0)
    end.come(0, 1.0)
    end.come(1, 1.0)
    end.take_in(1.0)
    assert (end.ready(1.5), end.ready(1.5)) == (0, 1)
    end.hand_out(0, 3, 2.0, 1.0, 0.5, 100)
    assert handed_out(end, 3) == [3.0, 4.5, 6.5]


def test_tokens_follow_their_step_while_there_is_time() -> None:
    end = front()
    end.hand_out(0, 3, 0.0, 10.0, 2.0, tokens=4)  # steps end at 10, 22 and 36
    assert handed_out(end, 3) == [14.0, 26.0, 40.0]
    assert end.given_s == 40.0


def test_too_many_tokens_set_the_pace() -> None:
    end = front()
    end.hand_out(0, 3, 0.0, 10.0, 0.0, tokens=20)
    assert handed_out(end, 3) == [30.0, 50.0, 70.0]


def test_a_burst_of_requests_holds_up_tokens_by_a_turn() -> None:
    end = front()
    for index in range(20):
        end.come(index, 5.0)
    # At 5 and 8 one is begun, and at 11, when the step has ended, eight more have their turn: until 35.
    end.hand_out(0, 1, 0.0, 10.0, 0.0, tokens=4)
    assert (handed_out(end, 1), len(end)) == ([39.0], 20)
    assert [end.ready(35.0) for _ in range(11)] == [*range(10), None]
    # Steps end at 20, 30 ... 60. Eight have their turn until 63, the last two after the first of these steps' tokens.
    end.hand_out(1, 5, 10.0, 10.0, 0.0, tokens=4)
    assert handed_out(end, 6)[1:] == [67.0, 77.0, 81.0, 85.0, 89.0]
    assert [end.ready(63.0) for _ in range(9)] == [*range(10, 18), None]
    assert [end.ready(73.0) for _ in range(3)] == [18, 19, None]


def test_tokens_that_set_the_pace_leave_requests_their_turn() -> None:
    end = front()
    end.hand_out(0, 1, 0.0, 10.0, 0.0, tokens=20)  # until 30
    end.come(0, 12.0)
    end.hand_out(1, 1, 10.0, 10.0, 0.0, tokens=20)
    assert handed_out(end, 2)[1] == 53.0
    assert (end.ready(32.9), end.ready(33.0)) == (None, 0)


@pytest.mark.parametrize(("ahead", "first_s"), [(False, 3.0), (True, 4.0)])
def test_what_comes_during_a_step_waits_for_the_one_made_up_ahead(
    config: EngineConfig, step_of: Callable[..., StepTime], ahead: bool, first_s: float
) -> None:
    requests = (
        RequestSpec(offset_ns=0, input_tokens=1, output_tokens=10),
        RequestSpec(offset_ns=1_500_000_000, input_tokens=1, output_tokens=2),
        RequestSpec(offset_ns=30_000_000_000, input_tokens=1, output_tokens=1),  # an idle engine starts at once
    )
    limits = Limits(slots=4, batch_tokens=100, ahead=ahead)
    run = simulate(config, Workload(requests=requests, source="hand"), step_of(overhead_s=1.0), limits)
    assert [trace.t_chunks_ns[0] / 1e9 for trace in run.traces] == [1.0, first_s, 31.0]


def test_a_closed_loop_sends_when_the_answer_was_handed_out(
    config: EngineConfig, step_of: Callable[..., StepTime]
) -> None:
    requests = (RequestSpec(offset_ns=0, input_tokens=1, output_tokens=1),) * 2
    step = step_of(overhead_s=10.0, front_request_s=3.0, front_token_s=1.0, request_s=3.0)
    limits = Limits(slots=1, batch_tokens=100)
    run = simulate(config, Workload(requests=requests, source="hand", concurrency=1), step, limits)
    # Taken in until 3, computed until 13, handed out at 14; the next one is sent then.
    assert [trace.t_chunks_ns[0] / 1e9 for trace in run.traces] == [14.0, 28.0]
    assert run.traces[1].t_sched_ns == 14_000_000_000
