"""What the engine's own gauges and counters say over the window; None where it does not say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from powerband.locate.activity import Floats
from powerband.records.sample import EngineSample
from powerband.records.value import Measured, known

# Fewer readings than this say too little about the time between them.
_MIN_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Counters:
    """Gauges as arrays beside ``t_ns`` (nan where a scrape failed); counters as their rise over the window."""

    t_ns: Floats
    running: Floats | None
    waiting: Floats | None
    kv_used_ratio: Floats | None
    prompt_tokens: float | None
    cached_tokens: float | None
    output_tokens: float | None
    prefill_s: float | None
    decode_s: float | None
    steps: float | None
    preemptions: float | None
    token_readings: Floats | None = None  # prompt and output tokens, and steps, as they were counted
    step_readings: Floats | None = None

    @property
    def has_queue(self) -> bool:
        """Whether the engine says how many requests run and wait."""
        return self.running is not None and self.waiting is not None


def read_counters(samples: Sequence[EngineSample]) -> Counters:
    """Read the samples of one run, in order of time."""
    ordered = sorted(samples, key=lambda sample: sample.t_ns)

    def gauge(read: Callable[[EngineSample], Measured]) -> Floats | None:
        values = [known(read(sample)) for sample in ordered]
        array = np.array([np.nan if value is None else value for value in values], dtype=float)
        return array if np.count_nonzero(~np.isnan(array)) >= _MIN_SAMPLES else None

    def rise(read: Callable[[EngineSample], Measured]) -> float | None:
        values = [value for value in (known(read(sample)) for sample in ordered) if value is not None]
        return max(values[-1] - values[0], 0.0) if len(values) >= 2 else None

    prompts, outputs = gauge(lambda s: s.prompt_tokens_total), gauge(lambda s: s.output_tokens_total)
    return Counters(
        t_ns=np.array([sample.t_ns for sample in ordered], dtype=float),
        running=gauge(lambda s: s.running),
        waiting=gauge(lambda s: s.waiting),
        kv_used_ratio=gauge(lambda s: s.kv_used_ratio),
        prompt_tokens=rise(lambda s: s.prompt_tokens_total),
        cached_tokens=rise(lambda s: s.cached_prompt_tokens_total),
        output_tokens=rise(lambda s: s.output_tokens_total),
        prefill_s=rise(lambda s: s.prefill_seconds_total),
        decode_s=rise(lambda s: s.decode_seconds_total),
        steps=rise(lambda s: s.steps_total),
        preemptions=rise(lambda s: s.preemptions_total),
        token_readings=None if prompts is None else prompts + (0.0 if outputs is None else outputs),
        step_readings=gauge(lambda s: s.steps_total),
    )


def mean_over_time(t_ns: Floats, values: Floats) -> float:
    """Time average of a gauge read at ``t_ns`` (trapezoids; failed readings left out)."""
    there = ~np.isnan(values)
    t, v = t_ns[there], values[there]
    if t.size == 0:
        return 0.0
    if t.size == 1 or t[-1] <= t[0]:
        return float(v.mean())
    return float((np.diff(t) * (v[1:] + v[:-1]) / 2).sum() / (t[-1] - t[0]))
