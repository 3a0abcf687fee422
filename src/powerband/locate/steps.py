"""How long a decode step takes for how many sequences: the shape that tells bandwidth from compute."""

from dataclasses import dataclass

import numpy as np

from powerband.locate.activity import Activity, Flags, Floats, Ints, Streams
from powerband.locate.service import Service

# Medians over fewer gaps than this are noise.
_MIN_GAPS = 20
# A level of concurrency counts as a point of its own from this many gaps on.
_MIN_GAPS_PER_LEVEL = 5


@dataclass(frozen=True, slots=True)
class Gaps:
    """Every gap between chunks of a stream: its bounds, tokens in the later chunk, sequences decoding meanwhile."""

    stream: Ints
    start_ns: Ints
    end_ns: Ints
    tokens: Ints
    sequences: Ints
    clean: Flags  # no prompt in service meanwhile

    @property
    def seconds(self) -> Floats:
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def step_s(self) -> Floats:
        return self.seconds / np.maximum(self.tokens, 1)


@dataclass(frozen=True, slots=True)
class StepCurve:
    """Step time ``base_s + per_sequence_s * n``, fitted to medians at ``levels`` (n, seconds, gaps).

    With a single level the slope is unknown: ``per_sequence_s`` is 0 and ``has_slope`` False.
    """

    base_s: float
    per_sequence_s: float
    levels: tuple[tuple[int, float, int], ...]
    typical: float  # sequences decoding, mean over gaps
    has_slope: bool

    def at(self, sequences: Floats | Ints | float) -> Floats:
        return np.asarray(self.base_s + self.per_sequence_s * np.asarray(sequences, dtype=float))

    @property
    def growing_share(self) -> float:
        """Share of the step at the typical concurrency that grows with the number of sequences."""
        growing = self.per_sequence_s * self.typical
        return growing / (self.base_s + growing) if growing > 0 else 0.0


def read_gaps(streams: Streams, activity: Activity, service: Service) -> Gaps:
    """All gaps of all streams; ``clean`` where no request in service waited for its first token meanwhile."""
    stream: list[int] = []
    start: list[int] = []
    end: list[int] = []
    tokens: list[int] = []
    for i, (times, counts) in enumerate(zip(streams.chunks, streams.chunk_tokens, strict=True)):
        stream += [i] * (len(times) - 1)
        start += times[:-1]
        end += times[1:]
        tokens += counts[1:]
    start_ns = np.array(start, dtype=np.int64)
    end_ns = np.maximum(np.array(end, dtype=np.int64), start_ns)
    middle = start_ns + (end_ns - start_ns) // 2
    return Gaps(
        stream=np.array(stream, dtype=np.int64),
        start_ns=start_ns,
        end_ns=end_ns,
        tokens=np.array(tokens, dtype=np.int64),
        sequences=np.maximum(activity.at(middle, activity.decoding), 1),
        clean=_no_prefill(streams, service, start_ns, end_ns),
    )


def _no_prefill(streams: Streams, service: Service, start_ns: Ints, end_ns: Ints) -> Flags:
    """Whether no span from service start to first token touches [start, end): spans begun less those over."""
    begun = np.searchsorted(np.sort(service.start_ns), end_ns, side="left")
    over = np.searchsorted(np.sort(streams.first_ns), start_ns, side="right")
    return np.asarray(begun - over <= 0)


def fit_steps(gaps: Gaps) -> StepCurve | None:
    """Median step time at each concurrency, and a line through the medians; None with too few gaps.

    Gaps with prefill in between are used only where there are too few without.
    """
    use = gaps.clean if np.count_nonzero(gaps.clean) >= _MIN_GAPS else np.ones(gaps.stream.size, dtype=bool)
    if np.count_nonzero(use) < _MIN_GAPS:
        return None
    step, sequences = gaps.step_s[use], gaps.sequences[use]
    levels = []
    for n in np.unique(sequences):
        of_level = step[sequences == n]
        if of_level.size >= _MIN_GAPS_PER_LEVEL:
            levels.append((int(n), float(np.median(of_level)), int(of_level.size)))
    typical = float(sequences.mean())
    if len(levels) < 2:
        return StepCurve(float(np.median(step)), 0.0, tuple(levels), typical, has_slope=False)
    n, seconds, weight = (np.array(column, dtype=float) for column in zip(*levels, strict=True))
    base, slope = _line(n, seconds, weight)
    return StepCurve(base, slope, tuple(levels), typical, has_slope=True)


def _line(n: Floats, seconds: Floats, weight: Floats) -> tuple[float, float]:
    """Weighted least squares with neither part below 0; weights grow with the root, since gaps of one step repeat."""
    w = np.sqrt(weight)
    mean_n, mean_s = np.average(n, weights=w), np.average(seconds, weights=w)
    spread = np.average((n - mean_n) ** 2, weights=w)
    slope = float(np.average((n - mean_n) * (seconds - mean_s), weights=w) / spread)
    base = float(mean_s - slope * mean_n)
    if slope < 0:
        return float(mean_s), 0.0
    if base < 0:
        return 0.0, float(np.average(n * seconds, weights=w) / np.average(n * n, weights=w))
    return base, slope
