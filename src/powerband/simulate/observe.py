"""Steps as they can be seen from outside: what each gap between tokens held, read from a run's traces."""

import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.units import NS_PER_S
from powerband.simulate.chains import observe_chains
from powerband.simulate.observed import WINDOW_STEPS, Array, Observed, Timeline
from powerband.simulate.scheduler import Limits
from powerband.simulate.slots import WARM_UP, SlotTable, neighbours

# A first token this near (as a share of the wait) to another's came with the same step.
SAME_STEP = 0.1


def observe_steps(run: Run, limits: Limits) -> list[Observed]:
    """Decode steps, steps that also held a prompt, and prompts processed alone; what cannot be told apart is left out.

    Every generating sequence gives one token a step, so the gaps of one sequence are the engine's steps. A prompt
    whose first token comes with the end of a gap was in that gap. Gaps with more prompt tokens than a step can hold are
    skipped, since the prompt spread over several. Where only neighbouring slots share a pass, the slots are worked out
    from when requests came and ended.
    """
    traces = [trace for trace in run.traces if trace.t_chunks_ns]
    if not traces:
        return []
    timeline = Timeline(traces)
    if not (limits.split_rows or limits.prompts_first):
        return observe_chains(timeline, traces, limits) + _prompts_alone(timeline, traces)
    slots = assign_slots(traces, limits.slots, run.warm_up or WARM_UP) if limits.split_rows else None
    rows = _from_gaps(timeline, traces, limits.most_prompt_tokens, slots)
    return rows + _prompts_alone(timeline, traces)


def assign_slots(traces: Sequence[RequestTrace], count: int, warmed: Sequence[int] = WARM_UP) -> list[int]:
    """The slot of each trace, first come first served, as the server would choose it.

    It releases the slots of a step together, by their numbers; the client sees those ends in any order.
    """
    table, ends = SlotTable(count, warmed), list[tuple[int, int]]()
    end_of = _step_ends(traces)
    slots, now = [0] * len(traces), 0
    came = [trace.t_sched_ns if trace.t_send_ns is None else trace.t_send_ns for trace in traces]
    for place in sorted(range(len(traces)), key=came.__getitem__):
        now = max(now, came[place])
        while ends and (ends[0][0] <= now or not table.free):
            end, slot = heapq.heappop(ends)
            now = max(now, end)
            table.release(slot)
        slots[place] = table.take()
        heapq.heappush(ends, (end_of[place], slots[place]))
    return slots


def _step_ends(traces: Sequence[RequestTrace]) -> list[int]:
    """When each trace ended: the first of all that ended within a part of a gap after it, which one step brought."""
    gaps = [np.median(np.diff(trace.t_chunks_ns)) for trace in traces if len(trace.t_chunks_ns) > 1]
    near = SAME_STEP * float(np.median(gaps)) if gaps else 0.0
    ends = [0] * len(traces)
    began, last = 0, -math.inf
    for place in sorted(range(len(traces)), key=lambda place: traces[place].t_chunks_ns[-1]):
        end = traces[place].t_chunks_ns[-1]
        if end - last > near:
            began = end
        ends[place], last = began, end
    return ends


def _rows_at(timeline: Timeline, slots: list[int] | None, at: Array) -> list[tuple[int, ...]]:
    """Rows of neighbouring slots that decode at each instant; empty where all share a pass."""
    if slots is None:
        return [()] * len(at)
    active = (timeline.first[:, None] <= at) & (at < timeline.last[:, None])
    numbers = np.array(slots)
    found = [neighbours(set(numbers[column].tolist())) for column in active.T]
    return [rows if len(rows) > 1 else () for rows in found]


def _from_gaps(
    timeline: Timeline, traces: Sequence[RequestTrace], batch_tokens: int, slots: list[int] | None
) -> list[Observed]:
    rows: list[Observed] = []
    for trace in _covering(traces):
        times = np.array(trace.t_chunks_ns, dtype=np.float64)
        if len(times) < 2:
            continue
        tokens = np.array(trace.chunk_tokens[1:], dtype=np.int64)
        middle = (times[:-1] + times[1:]) / 2
        next_middle = np.append(middle[1:], times[-1] + (times[-1] - middle[-1]))
        sequences = timeline.decoding(middle)
        prefill = timeline.prompts_between(middle, next_middle)
        context = timeline.context(middle)
        gaps = (times[1:] - times[:-1]) / NS_PER_S
        # A chunk of several tokens is usable only where nothing came or went while it was made.
        steady = (tokens == 1) | (
            (timeline.decoding(times[:-1] + 1) == timeline.decoding(times[1:] - 1)) & (prefill == 0)
        )
        usable = steady & (prefill + sequences <= batch_tokens) & (gaps > 0) & (sequences > 0)
        crowded = prefill + sequences > batch_tokens
        usable[:-1] &= ~crowded[1:]  # the gap before may hold the first part of a long prompt
        rows += _windows(gaps, tokens, sequences, context, prefill, usable, _rows_at(timeline, slots, middle))
    return rows


def _covering(traces: Sequence[RequestTrace]) -> list[RequestTrace]:
    """Few sequences that together cover the time, so that no step is counted once for every sequence in it."""
    chosen: list[RequestTrace] = []
    reached = -1
    for trace in sorted(traces, key=lambda trace: (trace.t_chunks_ns[0], -trace.t_chunks_ns[-1])):
        if trace.t_chunks_ns[-1] > reached:
            chosen.append(trace)
            reached = trace.t_chunks_ns[-1]
    return chosen


def _windows(
    gaps: Array,
    tokens: NDArray[np.int64],
    sequences: Array,
    context: Array,
    prefill: Array,
    usable: NDArray[np.bool_],
    passes: list[tuple[int, ...]],
) -> list[Observed]:
    """Neighbouring decode gaps of equal batch as one row (timer noise cancels); a gap with a prompt is its own row."""
    rows: list[Observed] = []
    start = 0
    while start < len(gaps):
        end = start + 1
        if usable[start] and prefill[start] == 0:
            while (
                end < len(gaps)
                and end - start < WINDOW_STEPS
                and usable[end]
                and prefill[end] == 0
                and sequences[end] == sequences[start]
                and passes[end] == passes[start]
            ):
                end += 1
        if usable[start]:
            part = slice(start, end)
            rows.append(
                Observed(
                    seconds=float(gaps[part].sum()),
                    steps=int(tokens[part].sum()),
                    sequences=int(sequences[start]),
                    context_tokens=float(context[part].mean()),
                    prefill_tokens=int(prefill[start]),
                    rows=passes[start],
                )
            )
        start = end
    return rows


def _prompts_alone(timeline: Timeline, traces: Sequence[RequestTrace]) -> list[Observed]:
    """Prompts during which nothing was decoding: from the send, or from the end of what ran before, to the token."""
    rows = []
    first_ns = [trace.t_chunks_ns[0] for trace in traces]
    before = timeline.decoding(np.array(first_ns, dtype=np.float64) - 1)
    for trace, running in zip(traces, before.tolist(), strict=True):
        first = trace.t_chunks_ns[0]
        sent = trace.t_sched_ns if trace.t_send_ns is None else trace.t_send_ns
        ended = timeline.lasts[np.searchsorted(timeline.lasts, first) - 1] if timeline.lasts[0] < first else -1.0
        if running > 0 or timeline.decoding(np.array([max(sent, ended) + 1.0]))[0] > 0:
            continue
        wait = first - max(sent, ended)
        near = np.abs(timeline.first - first) < SAME_STEP * wait
        if wait <= 0 or near.sum() != 1:
            continue
        rows.append(
            Observed(
                seconds=wait / NS_PER_S,
                steps=1,
                sequences=0,
                context_tokens=0.0,
                prefill_tokens=trace.input_tokens,
                requests=int(sent >= ended),
            )
        )
    return rows
