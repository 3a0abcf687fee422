"""What can be seen of an engine's steps from outside: counts at any instant, and what a stretch of time held."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from powerband.records.request import RequestTrace
from powerband.records.value import Record

# A row may not stand for more steps than this: longer windows mix what they should tell apart.
WINDOW_STEPS = 40

Array = NDArray[np.float64]


class Content(Record):
    """What each of ``steps`` equal steps held; ``prefill_tokens`` attend to ``pairs`` keys and end ``prompts``."""

    steps: int
    sequences: int
    context_tokens: float
    prefill_tokens: int = 0
    pairs: float = 0.0
    prompts: int = 0


class Observed(Record):
    """``steps`` equal steps that took ``seconds`` in all, and what each held; ``requests``: request overheads in it.

    ``rows``: how many of the sequences shared each pass, where not all shared one. ``contents``: what unequal steps
    held, where they could only be timed together; the fields above then sum them up.
    """

    seconds: float
    steps: int
    sequences: int
    context_tokens: float
    prefill_tokens: int = 0
    requests: int = 0
    rows: tuple[int, ...] = ()
    contents: tuple[Content, ...] = ()


class Timeline:
    """Counts over all requests at any instant, by cumulative sums."""

    def __init__(self, traces: Sequence[RequestTrace]) -> None:
        self.first = np.array([trace.t_chunks_ns[0] for trace in traces], dtype=np.float64)
        self.last = np.array([trace.t_chunks_ns[-1] for trace in traces], dtype=np.float64)
        prompt = np.array([trace.input_tokens for trace in traces], dtype=np.float64)
        output = np.array([trace.output_tokens for trace in traces], dtype=np.float64)
        by_first, by_last = np.argsort(self.first), np.argsort(self.last)
        self.firsts, self.lasts = self.first[by_first], self.last[by_last]
        self._prompts_begun = _running_sum(prompt[by_first])
        self._prompts_ended = _running_sum((prompt + output)[by_last])
        times = np.array([t for trace in traces for t in trace.t_chunks_ns], dtype=np.float64)
        tokens = np.array([n for trace in traces for n in trace.chunk_tokens], dtype=np.float64)
        order = np.argsort(times, kind="stable")
        self._times, self._tokens = times[order], _running_sum(tokens[order])

    def decoding(self, at: Array) -> Array:
        active = np.searchsorted(self.firsts, at) - np.searchsorted(self.lasts, at)
        return active.astype(np.float64)

    def context(self, at: Array) -> Array:
        """Prompt and given tokens of the sequences that are decoding."""
        held: Array = (
            self._prompts_begun[np.searchsorted(self.firsts, at)]
            + self._tokens[np.searchsorted(self._times, at)]
            - self._prompts_ended[np.searchsorted(self.lasts, at)]
        )
        return held

    def prompts_between(self, low: Array, high: Array) -> Array:
        begun = self._prompts_begun
        done: Array = begun[np.searchsorted(self.firsts, high)] - begun[np.searchsorted(self.firsts, low)]
        return done


def _running_sum(values: Array) -> Array:
    total: Array = np.concatenate([[0.0], np.cumsum(values)])
    return total
