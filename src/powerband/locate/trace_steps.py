"""Decode steps of a trace beside the roofline: how long a step takes, and what reading weights and KV would."""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from powerband.locate.activity import Floats, Ints
from powerband.locate.roofline import decode_floor_s
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.timeline import Timeline
from powerband.records.units import format_duration, percent

# How engines name a step: vLLM (context_0(0)_generation_8(8)), SGLang (step[DECODE bs=8]).
_DECODE = re.compile(r"generation_([1-9]\d*)|decode[^0-9]{0,4}bs=(\d+)", re.IGNORECASE)
_PREFILL = re.compile(r"context_[1-9]|prefill|extend", re.IGNORECASE)
# Medians over fewer steps are anecdotes.
_MIN_STEPS = 3


@dataclass(frozen=True, slots=True)
class TraceSteps:
    """Steps that the trace marks: from the start of one mark to that of the next, and device time within."""

    count: int
    step_s: float
    busy_s: float


def decode_sequences(timeline: Timeline) -> int | None:
    """How many sequences the marked steps decode for most of the time; None where steps with prompts take more of it.

    A step lasts to the start of the next one.
    """
    marks = timeline.marks  # sorted by start
    rows = zip(marks.start_ns.tolist(), marks.end_ns.tolist(), marks.name.tolist(), strict=True)
    named = [(start, end, timeline.name_of(name)) for start, end, name in rows]
    steps = [(start, end, name) for start, end, name in named if _DECODE.search(name) or _PREFILL.search(name)]
    spent: Counter[int] = Counter()
    for k, (start, end, name) in enumerate(steps):
        until = steps[k + 1][0] if k + 1 < len(steps) else end
        match = None if _PREFILL.search(name) else _DECODE.search(name)
        spent[int(match[1] or match[2]) if match else 0] += max(until - start, 0)
    decoding = [(ns, count) for count, ns in spent.items() if count]
    if not decoding or spent[0] > sum(ns for ns, _ in decoding):
        return None
    return max(decoding)[1]


def in_prompts_ns(timeline: Timeline, start_ns: Ints, values: Floats) -> float:
    """The sum of the values that belong to instants in steps with prompts; 0 where no step is marked."""
    marks = timeline.marks
    prompts = [index for index, name in enumerate(timeline.names) if _PREFILL.search(name)]
    steps = np.array([bool(_DECODE.search(name) or _PREFILL.search(name)) for name in timeline.names], dtype=bool)
    mine = steps[marks.name] if marks.size else np.zeros(0, dtype=bool)
    if not prompts or not mine.any():
        return 0.0
    starts, names = marks.start_ns[mine], marks.name[mine]
    place = np.searchsorted(starts, start_ns, side="right") - 1
    inside = (place >= 0) & np.isin(names[np.maximum(place, 0)], prompts)
    return float(values[inside].sum())


def decode_names(timeline: Timeline) -> list[int]:
    """Names of marks that decode and hold no prompt."""
    return [index for index, name in enumerate(timeline.names) if _DECODE.search(name) and not _PREFILL.search(name)]


def read_steps(timeline: Timeline, names: list[int]) -> TraceSteps | None:
    """Medians over the marks whose name is in ``names``; None for too few of them."""
    marks = timeline.marks
    mine = np.isin(marks.name, names)
    starts = np.sort(marks.start_ns[mine])
    if starts.size < _MIN_STEPS + 1:
        return None
    reach = np.maximum.accumulate(timeline.work_end_ns)
    before = np.concatenate([[timeline.work_start_ns[0]], reach[:-1]])
    length = np.maximum(reach - np.maximum(timeline.work_start_ns, before), 0)
    busy = _until(timeline.work_start_ns, length, starts)
    return TraceSteps(
        count=int(starts.size - 1),
        step_s=float(np.median(np.diff(starts))) / 1e9,
        busy_s=float(np.median(np.diff(busy))) / 1e9,
    )


def _until(start_ns: Ints, length_ns: Ints, instants: Ints) -> Floats:
    """Busy nanoseconds of work that starts before each instant."""
    total = np.concatenate([[0.0], np.cumsum(length_ns.astype(float))])
    return total[np.searchsorted(start_ns, instants, side="left")]


def describe_steps(steps: TraceSteps, sequences: int, model: ModelSpec | None, device: DeviceSpec | None) -> str:
    """One line: the median step, the device's share of it, and both beside the floor where model and card are known."""
    said = f"{steps.count} decode steps of {sequences}: median {format_duration(steps.step_s)}, "
    said += f"the device busy for {format_duration(steps.busy_s)} of it"
    floor = decode_floor_s(model, device, sequences=sequences)
    if floor is None or device is None or floor <= 0:
        return said
    used = floor / steps.busy_s if steps.busy_s > 0 else 0.0
    said += (
        f"; reading the weights takes {format_duration(floor)} on {device.name}: {steps.step_s / floor:.1f}x the floor"
    )
    return f"{said}, MBU {percent(used)} while busy (KV not counted)"
