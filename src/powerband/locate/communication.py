"""The share of a device's busy time that goes into communication which no kernel hides, from a trace."""

import dataclasses
import math

import numpy as np

from powerband.locate.gaps import split_busy
from powerband.records.timeline import Timeline
from powerband.records.value import Interval

_PARTS = 4
_STUDENT_3 = 2.353  # 90 % two-sided, for the mean of four parts


def communication_share(timeline: Timeline) -> tuple[float, Interval]:
    """Exposed communication over busy time, and the interval that its quarters (by pieces of work) give."""
    quarters = [_share(_part(timeline, n)) for n in range(_PARTS)] if timeline.work_start_ns.size >= 4 * _PARTS else []
    share = _share(timeline)
    if not quarters:
        return share, Interval(low=0.0, high=1.0)
    half = _STUDENT_3 * float(np.std(quarters, ddof=1)) / math.sqrt(_PARTS)
    return share, Interval(low=max(share - half, 0.0), high=min(share + half, 1.0))


def _share(timeline: Timeline) -> float:
    busy = split_busy(timeline)
    return busy.exposed_communication_ns / busy.busy_ns if busy.busy_ns else 0.0


def _part(timeline: Timeline, n: int) -> Timeline:
    """The nth quarter of the pieces of work, in the order they started."""
    size = timeline.work_start_ns.size
    chosen = np.argsort(timeline.work_start_ns, kind="stable")[n * size // _PARTS : (n + 1) * size // _PARTS]
    return dataclasses.replace(
        timeline,
        work_start_ns=timeline.work_start_ns[chosen],
        work_end_ns=timeline.work_end_ns[chosen],
        work_stream=timeline.work_stream[chosen],
        work_kind=timeline.work_kind[chosen],
        work_name=timeline.work_name[chosen],
        work_launch=timeline.work_launch[chosen],
    )
