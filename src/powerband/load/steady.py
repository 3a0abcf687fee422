"""Which part of a run to count, and whether what was measured there stood still; two runs side by side."""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from powerband.records.metrics import e2e_s, tpot_s, ttft_s
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.units import format_duration, s_to_ns
from powerband.records.value import Interval, Record

_BATCHES = 10
_T90 = 1.833  # Student's t, 9 degrees of freedom, 90 % two-sided
_T99_TREND = 3.355  # 8 degrees of freedom, 99 % two-sided: slope over ten batch means
_LEAST_DRIFT = 0.10  # a trend below this share of the mean, end to end, is not worth a warning
Read = Callable[[RequestTrace], float | None]


def without_warmup(run: Run, warmup_s: float) -> Run:
    """The run as if it had begun ``warmup_s`` later: requests due before are left out."""
    if warmup_s <= 0 or not run.traces:
        return run
    begin = min(trace.t_sched_ns for trace in run.traces) + s_to_ns(warmup_s)
    kept = tuple(trace for trace in run.traces if trace.t_sched_ns >= begin)
    note = f"warm-up: {len(run.traces) - len(kept)} requests of the first {format_duration(warmup_s)} are not counted"
    return msgspec.structs.replace(run, traces=kept, notes=(*run.notes, note))


def drift(traces: Sequence[RequestTrace]) -> str | None:
    """A warning where TTFT or TPOT has a trend over the run: the figures then depend on how long it was run.

    Slope of ten batch means in order of schedule, against its own scatter at 99 %; None for a run that stood still or
    has fewer than 50 answers.
    """
    done = sorted((trace for trace in traces if trace.status == "ok"), key=lambda trace: trace.t_sched_ns)
    for name, read in (("TTFT", ttft_s), ("TPOT", tpot_s)):
        means = batch_means(done, read)
        if means is None:
            continue
        places = np.arange(_BATCHES) - (_BATCHES - 1) / 2
        slope = float((places * means).sum() / (places**2).sum())
        scatter = means - means.mean() - slope * places
        error = math.sqrt(float((scatter**2).sum()) / (_BATCHES - 2) / float((places**2).sum()))
        change = slope * (_BATCHES - 1)
        if abs(slope) > _T99_TREND * error and abs(change) > _LEAST_DRIFT * float(means.mean()):
            first, last = (
                format_duration(float(means.mean()) - change / 2),
                format_duration(float(means.mean()) + change / 2),
            )
            return f"not steady: {name} went from {first} to {last} over the run; cut the warm-up or run longer"
    return None


def batch_means(traces: Sequence[RequestTrace], read: Read) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    values = [value for trace in traces if (value := read(trace)) is not None]
    if len(values) < 5 * _BATCHES:
        return None
    kept = np.asarray(values[len(values) % _BATCHES :], dtype=float)
    means: np.ndarray[tuple[int], np.dtype[np.float64]] = kept.reshape(_BATCHES, -1).mean(axis=1)
    return means


class SideBySide(Record):
    """One mean of two runs; the interval of the ratio is from within the runs and knows nothing of other days."""

    name: str
    before: float
    after: float
    ratio: float
    interval: Interval | None


def side_by_side(before: Run, after: Run) -> list[SideBySide]:
    """Mean TTFT, TPOT and E2E, and output tokens/s, of two runs; a metric that one of them lacks is left out."""
    rows = []
    for name, read in (("ttft_s", ttft_s), ("tpot_s", tpot_s), ("e2e_s", e2e_s)):
        sides = []
        for run in (before, after):
            done = sorted((t for t in run.traces if t.status == "ok"), key=lambda t: t.t_sched_ns)
            values = [value for trace in done if (value := read(trace)) is not None]
            sides.append((float(np.mean(values)) if values else 0.0, batch_means(done, read)))
        (first, first_means), (second, second_means) = sides
        if first > 0 and second > 0:
            interval = _ratio_interval(first_means, second_means)
            rows.append(SideBySide(name=name, before=first, after=second, ratio=second / first, interval=interval))
    first, second = before.metrics().output_tokens_per_s, after.metrics().output_tokens_per_s
    if first > 0:
        rows.append(
            SideBySide(name="output_tokens_per_s", before=first, after=second, ratio=second / first, interval=None)
        )
    return rows


def _ratio_interval(
    first: np.ndarray[tuple[int], np.dtype[np.float64]] | None,
    second: np.ndarray[tuple[int], np.dtype[np.float64]] | None,
) -> Interval | None:
    """Of second over first, in logarithms, from the scatter of ten batch means each."""
    if first is None or second is None:
        return None
    errors = [float(side.std(ddof=1)) / math.sqrt(_BATCHES) / float(side.mean()) for side in (first, second)]
    half = _T90 * math.hypot(*errors)
    middle = math.log(float(second.mean()) / float(first.mean()))
    return Interval(low=math.exp(middle - half), high=math.exp(middle + half))
