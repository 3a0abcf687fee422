"""When each token of a finished simulation was given: step numbers turned into times, all at once."""

import numpy as np
from numpy.typing import NDArray

from powerband.records.units import NS_PER_S
from powerband.simulate.front_end import FrontEnd
from powerband.simulate.stepper import Stepper

Times = NDArray[np.float64]


def given_by(stepper: Stepper, end_s: float, *, detailed: bool) -> tuple[list[int], list[tuple[int, ...]]]:
    """Tokens of each request by ``end_s``, and nanoseconds of them all or else of the first and the last.

    One time for a single token, none for none.
    """
    step_ends = _StepEnds(stepper.front)
    tokens = _tokens_by(stepper, step_ends, end_s)
    return tokens, (_detailed_times if detailed else _first_and_last)(stepper, step_ends, tokens)


class _StepEnds:
    """When each step's tokens were handed out: start of its segment + k first durations + their growth."""

    def __init__(self, front: FrontEnd) -> None:
        self._before, self._start, self._first, self._growth = np.array(front.segments).reshape(-1, 4).T.copy()

    def __call__(self, steps: NDArray[np.int64]) -> Times:
        segment = np.searchsorted(self._before, steps, side="left") - 1
        k = steps - self._before[segment]
        end: Times = self._start[segment] + k * self._first[segment] + self._growth[segment] * k * (k - 1) / 2
        return end


def _tokens_by(stepper: Stepper, step_ends: _StepEnds, end_s: float) -> list[int]:
    """A step that ended after ``end_s`` gave nothing in time."""
    last_step = stepper.step
    while last_step and step_ends(np.array([last_step]))[0] > end_s + 1e-9:
        last_step -= 1
    return [
        sum(min(tokens, max(last_step - first + 1, 0)) for first, tokens in stretches)
        for stretches in stepper.stretches
    ]


def _to_ns(seconds: Times) -> list[int]:
    whole: list[int] = np.rint(seconds * NS_PER_S).astype(np.int64).tolist()
    return whole


def _first_and_last(stepper: Stepper, step_ends: _StepEnds, tokens: list[int]) -> list[tuple[int, ...]]:
    firsts, lasts = [], []
    for stretches, count in zip(stepper.stretches, tokens, strict=True):
        if count:
            firsts.append(stretches[0][0])
            lasts.append(_step_of_token(stretches, count))
    ends = _to_ns(step_ends(np.array(firsts + lasts, dtype=np.int64))) if firsts else []
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


def _detailed_times(stepper: Stepper, step_ends: _StepEnds, tokens: list[int]) -> list[tuple[int, ...]]:
    steps = [
        np.concatenate([np.arange(first, first + given) for first, given in stretches])[:count]
        for stretches, count in zip(stepper.stretches, tokens, strict=True)
        if count
    ]
    ends = _to_ns(step_ends(np.concatenate(steps))) if steps else []
    times: list[tuple[int, ...]] = []
    place = 0
    for index, count in enumerate(tokens):
        if count and index in stepper.first_s:
            ends[place] = round(stepper.first_s[index] * NS_PER_S)
        times.append(tuple(ends[place : place + count]))
        place += count
    return times
