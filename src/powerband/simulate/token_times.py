"""When each token of a finished simulation was given: step numbers turned into times, all at once."""

import numpy as np
from numpy.typing import NDArray

from powerband.records.units import NS_PER_S
from powerband.simulate.stepper import Stepper

Times = NDArray[np.float64]


def tokens_by(stepper: Stepper, end_s: float) -> list[int]:
    """Tokens of each request given by ``end_s``; a step that ended later gave nothing in time."""
    last_step = stepper.step
    while last_step and _step_end_s(stepper, np.array([last_step]))[0] > end_s + 1e-9:
        last_step -= 1
    return [
        sum(min(tokens, max(last_step - first + 1, 0)) for first, tokens in stretches)
        for stretches in stepper.stretches
    ]


def _step_end_s(stepper: Stepper, steps: NDArray[np.int64]) -> Times:
    """When each step's tokens were handed out: start of its segment + k first durations + their growth."""
    front = stepper.front
    before = np.asarray(front.segment_step, dtype=np.int64)
    segment = np.searchsorted(before, steps, side="left") - 1
    k = (steps - before[segment]).astype(np.float64)
    start = np.asarray(front.segment_s)[segment]
    first = np.asarray(front.segment_first_s)[segment]
    growth = np.asarray(front.segment_growth_s)[segment]
    end: Times = start + k * first + growth * k * (k - 1) / 2
    return end


def _to_ns(seconds: Times) -> list[int]:
    whole: list[int] = np.rint(seconds * NS_PER_S).astype(np.int64).tolist()
    return whole


def first_and_last(stepper: Stepper, tokens: list[int]) -> list[tuple[int, ...]]:
    """Nanoseconds of each request's first and last token; one for a single token, none for none."""
    firsts, lasts = [], []
    for stretches, count in zip(stepper.stretches, tokens, strict=True):
        if count:
            firsts.append(stretches[0][0])
            lasts.append(_step_of_token(stretches, count))
    ends = _to_ns(_step_end_s(stepper, np.array(firsts + lasts, dtype=np.int64))) if firsts else []
    for place, index in enumerate(index for index, count in enumerate(tokens) if count):
        if index in stepper.first_s:
            ends[place] = round(stepper.first_s[index] * NS_PER_S)
    pairs = iter(zip(ends[: len(firsts)], ends[len(firsts) :], strict=True))
    return [() if not count else next(pairs) if count > 1 else next(pairs)[:1] for count in tokens]


def _step_of_token(stretches: tuple[tuple[int, int], ...], count: int) -> int:
    for first, given in stretches:
        if count <= given:
            return first + count - 1
        count -= given
    raise AssertionError("more tokens than were given")


def detailed_times(stepper: Stepper, tokens: list[int]) -> list[tuple[int, ...]]:
    """Nanoseconds of every token of each request."""
    steps = [
        np.concatenate([np.arange(first, first + given) for first, given in stretches])[:count]
        for stretches, count in zip(stepper.stretches, tokens, strict=True)
        if count
    ]
    ends = _to_ns(_step_end_s(stepper, np.concatenate(steps))) if steps else []
    times: list[tuple[int, ...]] = []
    place = 0
    for index, count in enumerate(tokens):
        if count and index in stepper.first_s:
            ends[place] = round(stepper.first_s[index] * NS_PER_S)
        times.append(tuple(ends[place : place + count]))
        place += count
    return times
