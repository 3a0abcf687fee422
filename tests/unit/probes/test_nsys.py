"""Nsight Systems exports made by hand after the schema of older and newer releases, and files that are none."""

import sqlite3
from pathlib import Path

import pytest

from powerband.locate.timeline import diagnose_timeline
from powerband.probes.nsys import is_sqlite, read_nsys
from powerband.records.errors import RequestError
from powerband.records.timeline import COMMUNICATION, COPY, KERNEL

PID = 77
THREAD = (PID << 24) + 5
NAMES = [
    "gemm_kernel",
    "ncclDevKernel_AllReduce",
    "cudaLaunchKernel_v7000",
    "cudaMemcpyAsync_v3020",
    "poll",
    "dataloader.next",
]


def export(folder: Path, *, newer: bool = True) -> Path:
    """Two kernels and a copy, each launched 5 us before it starts, with 80 us between them; a poll in the first gap."""
    path = folder / ("newer.sqlite" if newer else "older.sqlite")
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path)
    green = "greenContextId INTEGER," if newer else ""
    work = f"start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, {green} streamId INTEGER,"
    work += " correlationId INTEGER"
    base.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    base.execute(
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({work}, globalPid INTEGER, demangledName INTEGER, shortName INTEGER)"
    )
    base.execute(
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({work}, globalPid INTEGER, bytes INTEGER, copyKind INTEGER)"
    )
    base.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME "
        "(start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER)"
    )
    base.execute("CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER)")
    base.execute(
        "CREATE TABLE NVTX_EVENTS "
        "(start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER)"
    )
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(NAMES))
    extra = (0,) if newer else ()
    kernels = [
        (100_000, 120_000, 0, 1, *extra, 7, 1, PID << 24, 0, 0),
        (200_000, 210_000, 0, 1, *extra, 7, 2, PID << 24, 1, 1),
    ]
    base.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(kernels[0]))})", kernels)
    copy = (290_000, 300_000, 0, 1, *extra, 7, 3, PID << 24, 4096, 1)
    base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({', '.join('?' * len(copy))})", copy)
    calls = [(95_000, 98_000, THREAD, 1, 2), (195_000, 198_000, THREAD, 2, 2), (285_000, 288_000, THREAD, 3, 3)]
    base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", calls)
    base.execute("INSERT INTO OSRT_API VALUES (130000, 190000, ?, 4)", (THREAD,))
    base.execute("INSERT INTO NVTX_EVENTS VALUES (215000, 280000, 59, NULL, 5, ?)", (THREAD,))
    base.execute("INSERT INTO NVTX_EVENTS VALUES (90000, 299000, 59, 'step[DECODE bs=8]', NULL, ?)", (THREAD,))
    base.commit()
    base.close()
    return path


@pytest.mark.parametrize("newer", [True, False])
def test_work_launches_names_and_ranges_are_read(newer: bool, tmp_path: Path) -> None:
    timeline = read_nsys(export(tmp_path, newer=newer))
    assert timeline.work_start_ns.tolist() == [0, 100_000, 190_000]
    assert timeline.work_kind.tolist() == [KERNEL, COMMUNICATION, COPY]
    assert [timeline.name_of(index) for index in timeline.work_name.tolist()] == [*NAMES[:2], "Memcpy"]
    assert timeline.work_launch.tolist() == [0, 1, 2]
    assert timeline.calls.start_ns.tolist() == [-5_000, 95_000, 185_000]
    assert timeline.waits.start_ns.tolist() == [30_000]
    assert timeline.loads.start_ns.tolist() == [115_000]
    assert [timeline.name_of(index) for index in timeline.marks.name.tolist()] == ["step[DECODE bs=8]"]


def test_gaps_are_split_as_in_any_trace(tmp_path: Path) -> None:
    found = diagnose_timeline(read_nsys(export(tmp_path)))
    parts = {part.name: part.seconds * 1e6 for part in found.breakdown if part.seconds}
    # Work 20 + 10 + 10 of 200 us; loading covers 65 us of the second gap; the rest is the host's, in gaps below 1 ms.
    assert parts == pytest.approx(
        {"kernels": 20, "exposed communication": 10, "exposed copies": 10, "input pipeline": 65, "launch gaps": 95}
    )


def test_ids_of_two_processes_do_not_mix(tmp_path: Path) -> None:
    path = export(tmp_path)
    base = sqlite3.connect(path)
    base.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = ? WHERE correlationId = 2", ((PID + 1) << 24,))
    base.commit()
    base.close()
    assert read_nsys(path).work_launch.tolist() == [0, -1, 2]


def test_a_graph_traced_as_one_is_one_piece_of_work(tmp_path: Path) -> None:
    path = export(tmp_path)
    base = sqlite3.connect(path)
    base.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, "
        "streamId INTEGER, correlationId INTEGER, globalPid INTEGER)"
    )
    base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (400000, 500000, 0, 7, 9, ?)", (PID << 24,))
    base.commit()
    base.close()
    timeline = read_nsys(path)
    assert timeline.name_of(int(timeline.work_name[-1])) == "CUDA graph"


def test_a_report_without_host_calls_says_so_and_leaves_its_gaps_open(tmp_path: Path) -> None:
    path = export(tmp_path)
    base = sqlite3.connect(path)
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API", "NVTX_EVENTS"):
        base.execute(f"DROP TABLE {table}")
    base.commit()
    base.close()
    timeline = read_nsys(path)
    assert any("launches are not known" in note for note in timeline.notes)
    assert diagnose_timeline(timeline).verdict == "undecided"


def test_rows_of_the_wrong_kind_are_left_out(tmp_path: Path) -> None:
    path = export(tmp_path)
    base = sqlite3.connect(path)
    for row in (("x", 5), (None, None), (9, 3), (2.5, 3.5)):
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end) VALUES (?, ?)", row)
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, nameId) VALUES (?, ?, 2)", row)
        base.execute("INSERT INTO NVTX_EVENTS (start, end, text) VALUES (?, ?, x'ff00')", row)
    base.commit()
    base.close()
    assert read_nsys(path).work_start_ns.size == 3


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    base = sqlite3.connect(other)
    base.execute("CREATE TABLE notes (text TEXT)")
    base.commit()
    base.close()
    empty = tmp_path / "empty.sqlite"
    base = sqlite3.connect(empty)
    base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER)")
    base.commit()
    base.close()
    whole = export(tmp_path)
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole.read_bytes()[:5000])
    garbage = tmp_path / "garbage.sqlite"
    garbage.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)
    assert is_sqlite(garbage)
    assert not is_sqlite(tmp_path / "none")
    for path, says in (
        (other, "no Nsight Systems export"),
        (empty, "holds no GPU work"),
        (cut, "cannot be read"),
        (garbage, "cannot be read"),
    ):
        with pytest.raises(RequestError, match=says) as caught:
            read_nsys(path)
        assert "\n" not in caught.value.message
        assert caught.value.hint


def test_rows_that_are_left_out_are_counted(tmp_path: Path) -> None:
    path = export(tmp_path)
    base = sqlite3.connect(path)
    for row in ((1 << 62, (1 << 62) + 1), (-(1 << 63), 5), (0, 1 << 60), (9, 3)):
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end) VALUES (?, ?)", row)
    base.commit()
    base.close()
    timeline = read_nsys(path)
    assert timeline.work_start_ns.size == 3
    said = "4 rows of CUPTI_ACTIVITY_KIND_KERNEL without a usable time were left out"
    assert any(said in note for note in timeline.notes)


def test_a_view_that_never_ends_is_not_read(tmp_path: Path) -> None:
    path = export(tmp_path)
    base = sqlite3.connect(path)
    base.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    forever = "WITH RECURSIVE r(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM r)"
    base.execute(f'CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {forever} SELECT start, start AS "end" FROM r')
    base.commit()
    base.close()
    assert read_nsys(path).work_kind.tolist() == [COPY]


def test_a_schema_of_broken_bytes_is_refused_in_one_line(tmp_path: Path) -> None:
    path = export(tmp_path)
    data = path.read_bytes().replace(b"CREATE TABLE OSRT_API", b"CREATE TABL\xed OSRT_API")
    path.write_bytes(data)
    with pytest.raises(RequestError, match="cannot be read") as caught:
        read_nsys(path)
    assert "\n" not in caught.value.message


def test_names_are_bounded_in_length(tmp_path: Path) -> None:
    path = export(tmp_path)
    base = sqlite3.connect(path)
    base.execute("UPDATE StringIds SET value = ? WHERE id = 0", ("k" * 100_000,))
    base.commit()
    base.close()
    timeline = read_nsys(path)
    assert timeline.name_of(int(timeline.work_name[0])) == "k" * 160


def test_ranges_named_in_the_row_and_by_an_id_are_both_read(tmp_path: Path) -> None:
    path = export(tmp_path)
    base = sqlite3.connect(path)
    base.execute("INSERT INTO NVTX_EVENTS VALUES (1000, 2000, 59, NULL, 999, ?)", (THREAD,))  # an id that names nothing
    base.execute("INSERT INTO NVTX_EVENTS VALUES (3000, 4000, 59, 'DataLoader #1', NULL, ?)", (THREAD,))
    base.commit()
    base.close()
    timeline = read_nsys(path)
    assert [timeline.name_of(k) for k in timeline.loads.name.tolist()] == ["DataLoader #1", "dataloader.next"]
    assert timeline.marks.size == 1
