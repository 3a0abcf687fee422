"""Gaps of hand-made timelines land in the part that arithmetic says; unions agree with brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.locate.gaps import covered_ns, find_gaps, shares, split_busy, union_ns
from powerband.locate.timeline import diagnose_timeline
from powerband.locate.trace_steps import decode_sequences
from powerband.records.timeline import COMMUNICATION, COPY, KERNEL, Spans, Timeline

US, MS = 1_000, 1_000_000


def spans(*rows: tuple[int, int, str], names: list[str]) -> Spans:
    """(start, end, name) on thread 0."""
    ordered = sorted(rows)
    for _, _, name in ordered:
        if name not in names:
            names.append(name)
    return Spans(
        np.array([row[0] for row in ordered], dtype=np.int64),
        np.array([row[1] for row in ordered], dtype=np.int64),
        np.zeros(len(ordered), dtype=np.int64),
        np.array([names.index(row[2]) for row in ordered], dtype=np.int64),
    )


def timeline(
    work: list[tuple[int, int, int, int]],
    calls: list[tuple[int, int, str]] = [],  # noqa: B006 - read only
    **sides: list[tuple[int, int, str]],
) -> Timeline:
    """``work`` is (start, end, kind, index of its call or -1)."""
    names = ["gemm"]
    rows = sorted(work)
    others = {side: spans(*sides.get(side, []), names=names) for side in ("ops", "waits", "loads", "marks")}
    return Timeline(
        source="hand",
        device="0",
        work_start_ns=np.array([row[0] for row in rows], dtype=np.int64),
        work_end_ns=np.array([row[1] for row in rows], dtype=np.int64),
        work_stream=np.zeros(len(rows), dtype=np.int64),
        work_kind=np.array([row[2] for row in rows], dtype=np.int64),
        work_name=np.zeros(len(rows), dtype=np.int64),
        work_launch=np.array([row[3] for row in rows], dtype=np.int64),
        calls=spans(*calls, names=names),
        ops=others["ops"],
        waits=others["waits"],
        loads=others["loads"],
        marks=others["marks"],
        names=tuple(names),
        threads=("main",),
    )


def gap_parts(line: Timeline) -> dict[str, float]:
    gaps = find_gaps(line)
    return {name: float(seconds.sum()) / US for name, seconds in gaps.parts.items() if seconds.sum()}


def test_a_kernel_launched_in_the_gap_waited_for_the_host() -> None:
    line = timeline(
        [(0, 10 * US, KERNEL, 0), (100 * US, 110 * US, KERNEL, 1)],
        [(-5 * US, 0, "cudaLaunchKernel"), (90 * US, 95 * US, "cudaLaunchKernel")],
        ops=[(20 * US, 95 * US, "aten::mm")],
    )
    assert gap_parts(line) == {"launch gaps": 90.0}


def test_a_kernel_launched_long_before_waited_for_an_event() -> None:
    line = timeline(
        [(0, 10 * US, KERNEL, 0), (5000 * US, 5010 * US, KERNEL, 1)],
        [(-5 * US, 0, "cudaLaunchKernel"), (1 * US, 3 * US, "cudaLaunchKernel")],
    )
    assert gap_parts(line) == {"waiting for an event": 4990.0}


def test_queued_kernels_hand_over_and_kernels_of_one_graph_do_so_at_any_length() -> None:
    line = timeline(
        [(0, 10 * US, KERNEL, 0), (12 * US, 20 * US, KERNEL, 1), (90 * US, 99 * US, KERNEL, 1)],
        [(-9 * US, -8 * US, "cudaLaunchKernel"), (-5 * US, -4 * US, "cudaGraphLaunch")],
    )
    assert gap_parts(line) == {"between queued kernels": 72.0}


def test_loading_and_synchronising_take_their_own_part_of_a_gap() -> None:
    line = timeline(
        [(0, 10 * US, KERNEL, 0), (1000 * US, 1010 * US, COPY, 2)],
        [
            (-5 * US, 0, "cudaLaunchKernel"),
            (10 * US, 60 * US, "cudaStreamSynchronize"),
            (990 * US, 995 * US, "cudaMemcpyAsync"),
        ],
        loads=[(100 * US, 900 * US, "enumerate(DataLoader)#next")],
        ops=[(900 * US, 990 * US, "aten::to")],
    )
    assert gap_parts(line) == {"input pipeline": 800.0, "host sync": 50.0, "launch gaps": 140.0}


@pytest.mark.parametrize(
    ("ops", "part"),
    [
        ([(-9 * US, 0, "aten::mm")], "no work"),  # operators are recorded, and there is none in the gap
        ([(MS, 49 * MS, "aten::mm")], "launch gaps"),
        ([], "unseen"),  # no operators were recorded: the host may have been at work all the same
    ],
)
def test_a_long_gap_with_a_silent_host_is_no_work(ops: list[tuple[int, int, str]], part: str) -> None:
    line = timeline(
        [(0, 10 * US, KERNEL, 0), (50 * MS, 50 * MS + US, KERNEL, 1)],
        [(-5 * US, 0, "cudaLaunchKernel"), (50 * MS - 5 * US, 50 * MS, "cudaLaunchKernel")],
        ops=ops,
    )
    assert gap_parts(line) == {part: 49_990.0}


def test_overlapping_streams_count_once_and_exposure_has_an_order() -> None:
    # Kernel 0-10, communication 5-20, copy 15-40: busy 40, exposed communication 10, exposed copy 20.
    line = timeline([(0, 10, KERNEL, -1), (5, 20, COMMUNICATION, -1), (15, 40, COPY, -1)])
    busy = split_busy(line)
    assert (busy.busy_ns, busy.compute_ns, busy.exposed_communication_ns, busy.exposed_copy_ns) == (40, 10, 10, 20)
    assert (busy.communication_ns, busy.copy_ns) == (15, 25)


intervals = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(intervals, st.lists(st.tuples(st.integers(-50, 250), st.integers(0, 30)), max_size=12), st.data())
def test_parts_sum_to_the_window_and_unions_agree_with_counting(
    rows: list[tuple[int, int, int]], calls: list[tuple[int, int]], data: st.DataObject
) -> None:
    work = [
        (start, start + length, kind, data.draw(st.integers(-1, len(calls) - 1)) if calls else -1)
        for start, length, kind in rows
    ]
    line = timeline(work, [(start, start + length, "cudaLaunchKernel") for start, length in calls])
    covered = {t for start, end, _, _ in work for t in range(start, end)}
    busy = split_busy(line)
    assert busy.busy_ns == len(covered)
    parts = shares(busy, find_gaps(line))
    assert sum(part.seconds for part in parts) == pytest.approx(busy.window_ns / 1e9, abs=1e-15)
    assert min(part.seconds for part in parts) >= 0
    diagnose_timeline(line)  # must hold for any timeline


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=15),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), min_size=1, max_size=8),
)
def test_cover_agrees_with_counting(rows: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    mine = spans(*((start, start + length, "x") for start, length in rows), names=[])
    begin = np.array([start for start, _ in asked], dtype=np.int64)
    until = np.array([start + length for start, length in asked], dtype=np.int64)
    covered = {t for start, length in rows for t in range(start, start + length)}
    expected = [len(covered & set(range(start, start + length))) for start, length in asked]
    assert covered_ns(mine, np.zeros(len(asked), dtype=np.int64), begin, until).tolist() == expected


def test_the_union_of_nothing_is_nothing() -> None:
    assert union_ns(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)) == 0


def test_a_busy_decode_is_bandwidth_bound_and_other_busy_work_is_compute_bound() -> None:
    work = [(k * 10, k * 10 + 10, KERNEL, -1) for k in range(50)]
    decode = timeline(work, marks=[(0, 500, "execute_8_context_0(sq0)_generation_8(sq8)")])
    assert decode_sequences(decode) == 8
    assert diagnose_timeline(decode).verdict == "memory_bandwidth_bound"
    assert diagnose_timeline(timeline(work)).verdict == "compute_bound"
    mixed = timeline(work, marks=[(0, 500, "execute_9_context_1(sq700)_generation_8(sq8)")])
    assert decode_sequences(mixed) is None
    large = timeline(work, marks=[(0, 500, "step[DECODE bs=512]")])
    assert diagnose_timeline(large).verdict == "compute_bound"


def test_communication_is_the_verdict_where_it_is_what_the_device_waits_in() -> None:
    work = [(0, 30, KERNEL, -1), (30, 95, COMMUNICATION, -1), (200, 210, KERNEL, -1)]
    causes = [finding.cause for finding in diagnose_timeline(timeline(work)).findings]
    assert "communication_bound" in causes


def test_an_operator_called_like_a_prompt_is_no_step() -> None:
    work = [(0, 10 * US, KERNEL, 0), (40 * US, 50 * US, KERNEL, 1)]
    calls = [(-US, 0, "cudaLaunchKernel"), (38 * US, 39 * US, "cudaLaunchKernel")]
    line = timeline(work, calls, ops=[(12 * US, 30 * US, "aten::extend")], marks=[(0, 50 * US, "a range")])
    assert diagnose_timeline(line).verdict == "launch_bound"


def test_decode_steps_are_timed_from_mark_to_mark() -> None:
    # A step of 1 ms with kernels of 300 and 350 us, the second overlapped for 50 us: 600 us busy.
    work = [
        (step * MS + start, step * MS + end, KERNEL, -1)
        for step in range(5)
        for start, end in ((0, 300 * US), (250 * US, 600 * US))
    ]
    marks = [(step * MS, step * MS + 900 * US, "execute_context_0(0)_generation_2(2)") for step in range(5)]
    line = timeline(work, marks=marks)
    found = diagnose_timeline(line)
    assert any("4 decode steps of 2: median 1 ms, the device busy for 600 µs" in note for note in found.notes), (
        found.notes
    )
