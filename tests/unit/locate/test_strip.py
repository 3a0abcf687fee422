"""A window in bins, against the arithmetic done by hand."""

import numpy as np
import pytest

from powerband.locate.gaps import Gaps
from powerband.locate.strip import AT_WORK, bin_window
from powerband.records.timeline import Ints, Spans, Timeline


def timeline_of(*work: tuple[int, int]) -> Timeline:
    start, end = (np.array(column, dtype=np.int64) for column in zip(*work, strict=True))
    none: Ints = np.zeros(len(work), dtype=np.int64)
    empty = Spans(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
    return Timeline(
        source="made", device="0", work_start_ns=start, work_end_ns=end, work_stream=none, work_kind=none,
        work_name=none, work_launch=none - 1, calls=empty, ops=empty, waits=empty, loads=empty, marks=empty,
        names=("k",), threads=(),
    )  # fmt: skip


def gaps_of(start: list[int], end: list[int], **parts: list[float]) -> Gaps:
    spent = {name.replace("_", " "): np.array(values, dtype=float) for name, values in parts.items()}
    return Gaps(np.array(start), np.array(end), np.arange(len(start)) + 1, spent)


def test_each_bin_is_shared_out_between_work_and_the_parts_of_its_gaps() -> None:
    """Work 0-10, 30-60, 80-100; the first gap (20) is half launch and half input, the second (20) all input."""
    gaps = gaps_of([10, 60], [30, 80], launch_gaps=[10.0, 0.0], input_pipeline=[10.0, 20.0], no_work=[0.0, 0.0])
    strip = bin_window(timeline_of((0, 10), (30, 60), (80, 100)), gaps, 4)  # bins of 25
    assert list(strip) == [AT_WORK, "launch gaps", "input pipeline"]
    # Of bin 0, 15 of 25 lie in the first gap; of bin 1, 5; bin 2 holds 15 of the second gap and bin 3 the other 5.
    assert strip["launch gaps"].tolist() == pytest.approx([7.5 / 25, 2.5 / 25, 0, 0])
    assert strip["input pipeline"].tolist() == pytest.approx([7.5 / 25, 2.5 / 25, 15 / 25, 5 / 25])
    assert strip[AT_WORK].tolist() == pytest.approx([10 / 25, 20 / 25, 10 / 25, 20 / 25])


def test_without_gaps_all_is_work_even_in_a_window_of_no_length() -> None:
    none = gaps_of([], [])
    assert bin_window(timeline_of((5, 5)), none, 3)[AT_WORK].tolist() == [1.0, 1.0, 1.0]
    assert bin_window(timeline_of((0, 9)), none, 2)[AT_WORK].tolist() == [1.0, 1.0]
