"""The communication share of a trace made by hand."""

import numpy as np
import pytest

from powerband.locate.communication import communication_share
from powerband.records.timeline import COMMUNICATION, KERNEL, Spans, Timeline

NOTHING = np.zeros(0, dtype=np.int64)
NONE = Spans(NOTHING, NOTHING, NOTHING, NOTHING)


def timeline(work: list[tuple[int, int, int]]) -> Timeline:
    """(start, end, kind) in ns."""
    start, end, kind = (np.array(column, dtype=np.int64) for column in zip(*work, strict=True))
    zeros = np.zeros(len(work), dtype=np.int64)
    return Timeline(
        source="made", device="0", work_start_ns=start, work_end_ns=end, work_stream=zeros, work_kind=kind,
        work_name=zeros, work_launch=zeros - 1, calls=NONE, ops=NONE, waits=NONE, loads=NONE, marks=NONE,
        names=("k",), threads=(),
    )  # fmt: skip


def test_what_kernels_hide_does_not_count() -> None:
    # Each 100 ns: 70 of kernels, 20 of exposed communication (10 more lie under the kernel), 10 idle.
    work = []
    for n in range(40):
        at = 100 * n
        work += [(at, at + 70, KERNEL), (at + 60, at + 90, COMMUNICATION)]
    share, interval = communication_share(timeline(work))
    assert share == pytest.approx(20 / 90)
    assert interval.low == pytest.approx(20 / 90)
    assert interval.high == pytest.approx(20 / 90)


def test_uneven_quarters_widen_the_interval() -> None:
    work = []
    for n in range(64):
        spoken = 10 if n < 32 else 40
        work += [(100 * n, 100 * n + 50, KERNEL), (100 * n + 50, 100 * n + 50 + spoken, COMMUNICATION)]
    share, interval = communication_share(timeline(work))
    assert share == pytest.approx((10 + 40) / (60 + 90))
    assert interval.low < share - 0.1
    assert interval.high > share + 0.1


def test_a_short_trace_says_little() -> None:
    _, interval = communication_share(timeline([(0, 10, KERNEL), (10, 20, COMMUNICATION)]))
    assert (interval.low, interval.high) == (0.0, 1.0)
