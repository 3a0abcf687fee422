"""The process in front of an engine, against times worked out by hand; and steps that are made up ahead."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.records.config import EngineConfig
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.front_end import FrontEnd
from powerband.simulate.loop import simulate
from powerband.simulate.scheduler import Limits
from powerband.simulate.step_time import StepTime


def front(request_s: float = 0.0, front_request_s: float = 3.0, front_token_s: float = 1.0) -> FrontEnd:
    clock: Any = SimpleNamespace(request_s=request_s, front_request_s=front_request_s, front_token_s=front_token_s)
    return FrontEnd(clock)


def handed_out(end: FrontEnd, steps: int) -> list[float]:
    """When the tokens of each step were handed out, from the segments."""
    times = []
    for step in range(1, steps + 1):
        place = max(i for i, before in enumerate(end.segment_step) if before < step)
        k = step - end.segment_step[place]
        growth = end.segment_growth_s[place] * k * (k - 1) / 2
        times.append(end.segment_s[place] + k * end.segment_first_s[place] + growth)
    return times


def test_requests_are_taken_in_one_after_the_other() -> None:
    end = front(request_s=0.5)
    for index in range(3):
        end.come(index, 10.0)
    assert end.next_ready_s() == 13.5
    end.take_in(12.9)
    assert (end.next_work_s(), len(end)) == (13.0, 3)  # busy with the first until then
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
    # Steps end at 20, 30 ... 60. Eight have their turn until 63, and what they hold up is caught up with.
    end.hand_out(1, 5, 10.0, 10.0, 0.0, tokens=4)
    assert handed_out(end, 6)[1:] == [67.0, 71.0, 75.0, 79.0, 83.0]
    assert end.next_work_s() == 83.0  # two still wait


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
