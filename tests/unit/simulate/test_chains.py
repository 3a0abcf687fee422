"""Steps seen through a front end that hands tokens out late: what a stretch held and how long it took, by hand."""

from itertools import accumulate

import pytest

from powerband.records.request import RequestTrace
from powerband.simulate.chains import observe_chains
from powerband.simulate.observed import Timeline
from powerband.simulate.scheduler import Limits

MS = 1_000_000


def trace(index: int, times_ms: list[float], inputs: int) -> RequestTrace:
    times = tuple(round(t * MS) for t in times_ms)
    return RequestTrace(
        index=index, status="ok", input_tokens=inputs, output_tokens_asked=len(times), t_sched_ns=0,
        t_end_ns=times[-1], t_chunks_ns=times, chunk_tokens=(1,) * len(times),
    )  # fmt: skip


def rows_of(*traces: RequestTrace, budget: int = 10_000):  # type: ignore[no-untyped-def]
    return observe_chains(Timeline(traces), traces, Limits(slots=8, batch_tokens=budget))


def test_a_prompt_is_timed_with_the_steps_about_it() -> None:
    """Steps of 10 ms, but the 20th holds a prompt and takes 60; what came before it was handed out 8 ms late."""
    steps = [10.0] * 19 + [60.0] + [10.0] * 20
    ends = list(accumulate(steps))
    seen = list(ends)
    seen[18] += 8  # so that the step with the prompt looks 8 ms too short
    joining = trace(1, [ends[19] + 4, *ends[20:30]], inputs=500)  # its first token comes 4 ms after the others'
    rows = rows_of(trace(0, [0.0, *seen], inputs=7), joining)
    near = [row for row in rows if row.prefill_tokens]
    assert len(near) == 1
    assert near[0].prefill_tokens == 500
    assert near[0].steps == 5
    assert near[0].seconds * 1e3 == pytest.approx(4 * 10 + 60)
    assert sum(one.prompts for one in near[0].contents) == 1
    assert [one.pairs for one in near[0].contents if one.prefill_tokens] == [500 * 501 / 2]
    alone = [row for row in rows if not row.prefill_tokens]
    assert sum(row.steps for row in alone) == 35
    assert all(row.seconds / row.steps * 1e3 == pytest.approx(10.0) for row in alone)
    assert sorted({row.sequences for row in alone}) == [1, 2]


def test_each_step_is_seen_once_and_sequences_take_over() -> None:
    streams = [trace(i, [10.0 * (k + i) for k in range(30)], inputs=1) for i in range(5)]
    rows = rows_of(*streams)
    # Steps from 0 to 330 ms, seen by five sequences; prompts of one token come with the first four starts.
    assert sum(row.steps for row in rows) == 33
    assert sum(row.seconds for row in rows) == pytest.approx(0.33)
    assert sum(row.prefill_tokens for row in rows) == 4


def test_a_prompt_beyond_the_budget_was_in_the_steps_before() -> None:
    ends = [10.0 * k for k in range(30)]
    rows = rows_of(trace(0, ends, inputs=1), trace(1, [200.0, 210.0], inputs=250), budget=100)
    (near,) = [row for row in rows if row.prefill_tokens]
    chunks = [(one.prefill_tokens, one.pairs, one.prompts) for one in near.contents if one.prefill_tokens]
    # 99 tokens beside the decoding one in the last two steps, 52 before them; a chunk attends to what came before it.
    assert chunks == [(52, 52 * 53 / 2, 0), (99, 99 * (52 + 50), 0), (99, 99 * (151 + 50), 1)]


def test_a_prompt_whose_steps_came_before_the_chain_is_left_out() -> None:
    rows = rows_of(trace(0, [10.0 * k for k in range(40)], inputs=1), trace(1, [10.0, 20.0], inputs=500), budget=100)
    assert all(not row.prefill_tokens for row in rows)


def test_a_silence_ends_a_chain() -> None:
    rows = rows_of(trace(0, [0.0, 10.0, 20.0], inputs=1), trace(1, [500.0, 510.0], inputs=1))
    assert sum(row.seconds for row in rows) == pytest.approx(0.03)
