"""Pauses of an engine: a while without a token for anybody that no prompt explains, as when kernels are compiled.

Engines compile for a new shape when it first comes, for a second or so, and nothing is served meanwhile. Such a pause
does not come back: taken for prefill or decode it would be the largest part of a short run. So it is cut out of the
clock, and counted as time that nothing seen from outside explains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from powerband.locate.activity import Flags, Floats, Ints, Streams
from powerband.locate.view import View
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.sample import DeviceSample, EngineSample, HostSample
from powerband.records.units import format_duration, percent

# Shorter ones change no verdict, and a busy host makes them; and a step may well be some times as long as another.
_LEAST_S, _TIMES = 0.3, 5.0
# Without so many steps under as many prompt tokens there is nothing to compare with.
_ALIKE = 5
# Tokens of one step arrive within this share of it, or of a millisecond where steps are not known.
_ONE_STEP = 0.2

Sample = TypeVar("Sample", EngineSample, HostSample, DeviceSample)


@dataclass(frozen=True, slots=True)
class Pause:
    """From ``start_ns`` to ``end_ns`` no token came; it would have been ``usual_ns`` by steps with as many prompts."""

    start_ns: int
    end_ns: int
    usual_ns: int

    @property
    def cut_ns(self) -> int:
        return self.end_ns - self.start_ns - self.usual_ns


def find_pauses(view: View) -> list[Pause]:
    """In order of time; only those that can be compared with steps under as many prompt tokens."""
    step_s = 0.005 if view.steps is None else float(view.steps.at(view.steps.typical))
    start, end, tokens = _steps(view.streams, int(view.activity.edges_ns[0]), round(_ONE_STEP * step_s * 1e9))
    length = end - start
    long = np.flatnonzero(length >= _LEAST_S * 1e9)
    if not long.size:
        return []
    prefilling = _longest_of_each(view.streams, end, length)
    pauses = []
    for k in long.tolist():
        alike = prefilling & (tokens >= tokens[k] / 2) if tokens[k] else tokens == 0
        usual = float(np.median(length[alike])) if np.count_nonzero(alike) >= _ALIKE else np.inf
        if length[k] >= _TIMES * usual:
            pauses.append(Pause(int(start[k]), int(end[k]), round(usual)))
    return pauses


def _steps(streams: Streams, begin_ns: int, same_ns: int) -> tuple[Ints, Ints, Ints]:
    """Start and end of each while without a token and with a request in flight; prompt tokens unanswered meanwhile."""
    times = np.unique(np.array([begin_ns, *(t for chunks in streams.chunks for t in chunks)], dtype=np.int64))
    apart = np.flatnonzero(np.diff(times) > same_ns)
    start, end = times[apart], times[apart + 1]
    sent = np.sort(streams.send_ns)
    idle = _count(sent, start, "right") - _count(np.sort(streams.last_ns), start, "right") <= 0
    next_sent = np.append(sent, np.iinfo(np.int64).max)[_count(sent, start, "right")]
    start = np.where(idle, next_sent, start)
    there = start < end
    start, end = start[there], end[there]
    return (
        start,
        end,
        _sum_before(streams.send_ns, streams.input_tokens, end)
        - _sum_before(streams.first_ns, streams.input_tokens, end),
    )


def _count(ordered: Ints, at: Ints, side: str) -> Ints:
    return np.searchsorted(ordered, at, side=side)  # type: ignore[call-overload,no-any-return]


def _sum_before(t_ns: Ints, values: Ints, at: Ints) -> Ints:
    order = np.argsort(t_ns)
    total = np.concatenate([[0], np.cumsum(values[order])])
    return np.asarray(total[np.searchsorted(t_ns[order], at, side="left")], dtype=np.int64)


def _longest_of_each(streams: Streams, end: Ints, length: Ints) -> Flags:
    """The longest step before each first token: the one that computed its prompt, not one under way when it came."""
    longest = np.zeros(end.size, dtype=bool)
    first = np.searchsorted(end, streams.send_ns, side="right")
    last = np.searchsorted(end, streams.first_ns, side="right")
    for low, high in zip(first[streams.started].tolist(), last[streams.started].tolist(), strict=True):
        if low < high:
            longest[low + int(np.argmax(length[low:high]))] = True
    return longest


def cut_pauses(run: Run, pauses: Sequence[Pause]) -> Run:
    """The run on a clock that stands still in each pause but for its usual length; readings in a pause are left out."""
    begins = np.array([pause.start_ns + pause.usual_ns for pause in pauses], dtype=np.int64)
    ends = np.array([pause.end_ns for pause in pauses], dtype=np.int64)

    def moved(t_ns: int) -> int:
        return t_ns - int(np.clip(t_ns - begins, 0, ends - begins).sum())

    def kept(samples: Sequence[Sample]) -> tuple[Sample, ...]:
        inside = [bool(((begins < sample.t_ns) & (sample.t_ns < ends)).any()) for sample in samples]
        rows = [sample for sample, out in zip(samples, inside, strict=True) if not out]
        return tuple(msgspec.structs.replace(sample, t_ns=moved(sample.t_ns)) for sample in rows)

    return msgspec.structs.replace(
        run,
        traces=tuple(_moved_trace(trace, moved) for trace in run.traces),
        end_ns=moved(run.end_ns),
        engine_samples=kept(run.engine_samples),
        host_samples=kept(run.host_samples),
        device_samples=kept(run.device_samples),
    )


def _moved_trace(trace: RequestTrace, moved: Callable[[int], int]) -> RequestTrace:
    return msgspec.structs.replace(
        trace,
        t_sched_ns=moved(trace.t_sched_ns),
        t_send_ns=None if trace.t_send_ns is None else moved(trace.t_send_ns),
        t_end_ns=None if trace.t_end_ns is None else moved(trace.t_end_ns),
        t_chunks_ns=tuple(moved(t) for t in trace.t_chunks_ns),
    )


def describe(pauses: Sequence[Pause], window_ns: int) -> str:
    """One line: how many, how long, how long such steps are otherwise, and what it may have been."""
    seconds: Floats = np.array([pause.end_ns - pause.start_ns for pause in pauses]) / 1e9
    usual_s = float(np.median([pause.usual_ns for pause in pauses])) / 1e9
    share = sum(pause.cut_ns for pause in pauses) / window_ns
    each = format_duration(float(seconds.max()))
    if len(pauses) > 1:
        each = f"{format_duration(float(seconds.min()))} to {each}"
    count = "1 pause" if len(pauses) == 1 else f"{len(pauses)} pauses"
    return (
        f"{count} of {each} without a token for anybody ({percent(share)} of the window), where steps "
        f"under as many prompt "
        f"tokens take {format_duration(usual_s)}: so an engine compiles for a new shape, or stands still"
    )
