"""Decode steps of a trace beside the roofline: how long a step takes, and what reading weights and KV would."""

from dataclasses import dataclass

import numpy as np

from powerband.locate.activity import Floats, Ints
from powerband.locate.roofline import decode_floor_s
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.timeline import Timeline
from powerband.records.units import format_duration

# Medians over fewer steps are anecdotes.
_MIN_STEPS = 3


@dataclass(frozen=True, slots=True)
class TraceSteps:
    """Steps that the trace marks: from the start of one mark to that of the next, and device time within."""

    count: int
    step_s: float
    busy_s: float


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
    return f"{said}, MBU {used:.0%} while busy (KV not counted)"
