"""Small cases worked out on paper: a step takes 1 s, plus 0.1 s for each token in it, unless said otherwise."""

from collections.abc import Callable

import pytest

from powerband.records.config import EngineConfig
from powerband.records.request import RequestTrace
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.loop import simulate
from powerband.simulate.scheduler import Limits
from powerband.simulate.step_time import StepTime

StepOf = Callable[..., StepTime]
WorkloadOf = Callable[..., Workload]
S = 1_000_000_000


def times(trace: RequestTrace) -> list[float]:
    return [t / S for t in trace.t_chunks_ns]


def test_one_request_alone(step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig) -> None:
    # Prefill of 10 tokens: 1 + 10 * 0.1 = 2 s, then two decode steps of 1.1 s.
    step = step_of(overhead_s=1.0, token_s=0.1)
    run = simulate(config, workload_of((0.0, 10, 3)), step, Limits(slots=1, batch_tokens=100))
    assert times(run.traces[0]) == pytest.approx([2.0, 3.1, 4.2])
    assert run.traces[0].status == "ok"
    assert run.end_ns == 42 * S // 10
    assert run.basis == "simulated"


def test_one_slot_serves_first_come_first_served(
    step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig
) -> None:
    step = step_of(overhead_s=1.0, token_s=0.1)
    run = simulate(
        config, workload_of((0.0, 10, 2), (0.5, 20, 2), (0.6, 10, 1)), step, Limits(slots=1, batch_tokens=100)
    )
    # First: 2, 3.1. Second starts at 3.1: 3.1 + 1 + 2 = 6.1, 7.2. Third starts at 7.2: 7.2 + 2 = 9.2.
    assert [times(trace) for trace in run.traces] == [pytest.approx(t) for t in ([2.0, 3.1], [6.1, 7.2], [9.2])]
    assert [trace.t_sched_ns for trace in run.traces] == [0, S // 2, 6 * S // 10]


def test_a_prompt_joins_the_running_step(step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig) -> None:
    step = step_of(overhead_s=1.0, token_s=0.1)
    run = simulate(config, workload_of((0.0, 10, 5), (2.5, 10, 2)), step, Limits(slots=2, batch_tokens=100))
    # Steps end at 2 and 3.1; the next holds 1 + 10 tokens (2.1 s), then one holds 2 tokens (1.2 s), the last 1 (1.1 s).
    assert times(run.traces[0]) == pytest.approx([2.0, 3.1, 5.2, 6.4, 7.5])
    assert times(run.traces[1]) == pytest.approx([5.2, 6.4])


def test_a_prompt_that_comes_first_stops_what_decodes(
    step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig
) -> None:
    step = step_of(overhead_s=1.0, token_s=0.1)
    limits = Limits(slots=2, batch_tokens=100, prompts_first=True)
    requests = workload_of((0.0, 10, 5), (2.5, 10, 2))
    # The first prompt ends at 2, a step at 3.1. The second prompt takes 2 s alone; two decode in 1.2 s, one in 1.1.
    for detailed in (True, False):
        run = simulate(config, requests, step, limits, detailed=detailed)
        first, second = (times(trace) for trace in run.traces)
        assert (first[0], first[-1]) == pytest.approx((2.0, 8.5))
        assert second == pytest.approx([5.1, 6.3])
    detail = simulate(config, requests, step, limits)
    assert times(detail.traces[0]) == pytest.approx([2.0, 3.1, 6.3, 7.4, 8.5])
    # Answers of one token need no step at all: two prompts of 10 in one pass of 3 s.
    short = simulate(config, workload_of((0.0, 10, 1), (0.0, 10, 1)), step, limits)
    assert [times(trace) for trace in short.traces] == [[pytest.approx(3.0)], [pytest.approx(3.0)]]


def test_long_prompt_is_cut_into_chunks(step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig) -> None:
    step = step_of(overhead_s=1.0, token_s=0.1)
    run = simulate(config, workload_of((0.0, 1, 6), (0.0, 25, 1)), step, Limits(slots=2, batch_tokens=11))
    # Step 1: prompt of 1 and 10 of 25 (2.1 s). Step 2: one decode and 10 more (2.1 s). Step 3: one and the last 5: 1.6
    assert times(run.traces[0])[:3] == pytest.approx([2.1, 4.2, 5.8])
    assert times(run.traces[1]) == pytest.approx([5.8])


def test_static_batching_waits_for_the_longest(step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig) -> None:
    step = step_of(overhead_s=1.0)
    requests = workload_of((0.0, 1, 2), (0.0, 1, 5), (0.0, 1, 1))
    static = simulate(config, requests, step, Limits(slots=2, batch_tokens=100, batching="static"))
    going_on = simulate(config, requests, step, Limits(slots=2, batch_tokens=100))
    assert times(static.traces[2]) == [6.0]  # the batch of the first two runs until 5
    assert times(going_on.traces[2]) == [3.0]  # the slot freed at 2 is refilled at once


def test_context_makes_steps_longer(step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig) -> None:
    # 0.01 s per token attended to: decode steps attend to 101, 102, 103 tokens.
    step = step_of(overhead_s=1.0, context_token_s=0.01)
    run = simulate(config, workload_of((0.0, 100, 4)), step, Limits(slots=1, batch_tokens=1000))
    assert times(run.traces[0]) == pytest.approx([1.0, 3.01, 5.03, 7.06])


def test_closed_loop_sends_the_next_when_one_ends(
    step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig
) -> None:
    step = step_of(overhead_s=1.0)
    requests = workload_of(*[(0.0, 1, 3)] * 4, concurrency=2)
    run = simulate(config, requests, step, Limits(slots=8, batch_tokens=100))
    assert [trace.t_sched_ns // S for trace in run.traces] == [0, 0, 3, 3]
    assert run.end_ns == 6 * S


def test_deadline_drops_what_has_not_ended(step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig) -> None:
    step = step_of(overhead_s=1.0)
    requests = workload_of((0.0, 1, 2), (0.0, 1, 9), (50.0, 1, 1))
    run = simulate(config, requests, step, Limits(slots=2, batch_tokens=100), deadline_s=4.5)
    assert [trace.status for trace in run.traces] == ["ok", "dropped", "dropped"]
    assert times(run.traces[1]) == [1.0, 2.0, 3.0, 4.0]
    assert run.traces[2].t_chunks_ns == ()
    assert run.end_ns == 4.5 * S


def test_request_longer_than_a_slot_is_refused(step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig) -> None:
    step = step_of(overhead_s=1.0)
    run = simulate(
        config, workload_of((0.0, 90, 20), (0.0, 90, 2)), step, Limits(slots=2, batch_tokens=100, slot_tokens=100)
    )
    assert [trace.status for trace in run.traces] == ["error", "ok"]
    assert run.traces[0].error is not None
    assert run.traces[0].error.startswith("http_400")


def test_preemption_computes_the_youngest_again(step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig) -> None:
    # 4 blocks of 2 tokens; prompts of 3 take 2 blocks each, so all 4. Step 1 gives both their first token.
    # Step 2 feeds it back into the half-free second block (context 4). Step 3 needs a fifth block: the second request
    # gives up its 2 blocks, and the first goes on alone: steps 3, 4, 5 reach its 5 tokens (context 7, 4 blocks).
    # Only then (step 6) is the second prefilled again, 3 + 2 tokens, which gives its third token; 7 and 8 end it.
    step = step_of(overhead_s=1.0)
    limits = Limits(slots=2, batch_tokens=100, kv_tokens=8, block_tokens=2)
    run = simulate(config, workload_of((0.0, 3, 5), (0.0, 3, 5)), step, limits)
    assert times(run.traces[0]) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert times(run.traces[1]) == [1.0, 2.0, 6.0, 7.0, 8.0]
    assert any("1 preemptions" in note for note in run.notes)


def test_empty_workload_ends_at_once(step_of: StepOf, workload_of: WorkloadOf, config: EngineConfig) -> None:
    run = simulate(config, workload_of(), step_of(overhead_s=1.0), Limits(slots=1, batch_tokens=1))
    assert run.traces == ()
    assert run.end_ns == 0


def test_a_closed_loop_loses_no_step(step_of: StepOf, config: EngineConfig) -> None:
    # Two in flight, and an answer's end sends the next request, which the step that begins then takes in: at most two
    # prompts of 5 tokens and an overhead, 0.01 + 10 * 0.0004 = 0.014 s. Where a rounding put it after that instant, it
    # waited for another step of 0.0104 s at least. With steps made up ahead it waits for one such (0.0114 s at most).
    specs = tuple(RequestSpec(offset_ns=0, input_tokens=5, output_tokens=3 + i % 7) for i in range(400))
    step = step_of(overhead_s=0.01, token_s=0.0004, context_token_s=0.00002)
    workload = Workload(requests=specs, source="hand", concurrency=2)
    for ahead, most_s in ((False, 0.015), (True, 0.026)):
        run = simulate(config, workload, step, Limits(slots=2, batch_tokens=1000, ahead=ahead))
        assert max(trace.t_chunks_ns[0] - trace.t_sched_ns for trace in run.traces) < most_s * S
