"""Read an Nsight Systems report exported to SQLite into the timeline of its busiest device.

Tables as of the exports of 2021 to 2026: kernels, copies, sets and whole graphs of CUPTI, CUDA calls, OS calls and NVTX
ranges. Which tables and columns there are depends on version and options, so each is asked for before it is read.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.request import pathname2url

import numpy as np

from powerband.probes.timeline_build import Work, build_timeline
from powerband.probes.trace_columns import Columns
from powerband.records.errors import RequestError
from powerband.records.timeline import COMMUNICATION, COPY, KERNEL, MEMSET, Ints, Timeline

_WORK = {
    "CUPTI_ACTIVITY_KIND_KERNEL": KERNEL,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": KERNEL,  # with --cuda-graph-trace=graph a graph is one piece of work
    "CUPTI_ACTIVITY_KIND_MEMCPY": COPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": MEMSET,
}
_CALLS, _OS, _NVTX = "CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API", "NVTX_EVENTS"
_TITLES = {
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "CUDA graph",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "Memcpy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "Memset",
}
_COMMUNICATION = ("nccl", "rccl", "all_reduce", "allreduce", "all_gather", "cross_device")
# OS calls in which a thread waits for something else than the device.
_WAITING = ("poll", "select", "sleep", "wait", "recv", "accept", "futex", "read")
_LOADING = ("dataloader", "data_load")
_MAX_ROWS = 20_000_000
# Serialised ids hold the process in bits 24 to 47 (Nsight Systems, SQLite schema reference).
_PID_SHIFT, _PID_MASK = 24, 0xFFFFFF
_HINT = "accepted: a report exported with nsys export --type sqlite"


def is_sqlite(path: Path) -> bool:
    """Whether the file is an SQLite database, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def read_nsys(path: Path) -> Timeline:
    """The timeline of the device with the most work in the export at ``path``.

    Raises RequestError (one line and a hint) where it is damaged, another database, or holds no device work.
    """
    address = f"file:{pathname2url(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
            return _Export(database, path.name).read()
    except sqlite3.Error as error:
        raise RequestError(f"{path.name} cannot be read: {error}", hint=_HINT) from None


class _Export:
    """One open export: its tables, and its names as numbers."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database, self._file = database, name
        tables = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self._tables = {str(row[0]) for row in tables}
        self._names: dict[str, int] = {}
        self._by_id: dict[int, int] = {}
        self._threads: dict[int, int] = {}

    def read(self) -> Timeline:
        if not self._tables & {*_WORK, _CALLS}:
            raise RequestError(f"{self._file} is no Nsight Systems export with CUDA activity", hint=_HINT)
        self._read_names()
        work, devices = self._work()
        calls = self._host(_CALLS, keep=lambda name: True, with_id=True)
        notes = [] if _CALLS in self._tables else ["the report holds no CUDA calls: launches are not known"]
        waits = self._host(_OS, keep=lambda name: any(word in name.lower() for word in _WAITING))
        if not waits.pieces and calls.pieces:
            notes.append(
                "no OS calls were traced: host waits cannot be told from host work (nsys profile --trace=osrt)"
            )
        marks, loads = self._ranges()
        return build_timeline(
            self._file,
            work,
            calls,
            device_names=devices,
            ops=Columns(),
            waits=waits,
            loads=loads,
            marks=marks,
            names=tuple(self._names),
            threads=tuple(f"thread {thread & 0xFFFFFF}" for thread in self._threads),
            notes=notes,
        )

    def _read_names(self) -> None:
        for identity, value in self._rows("StringIds", "id", "value"):
            if isinstance(identity, int):
                self._by_id[identity] = self._number(str(value)[:160])

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _rows(self, table: str, *columns: str) -> list[tuple[object, ...]]:
        """The rows of a table; columns that this version does not have read as NULL, no rows where it is absent."""
        if table not in self._tables:
            return []
        there = {str(row[1]) for row in self._database.execute(f"PRAGMA table_info({table})")}
        chosen = ", ".join(f'"{column}"' if column in there else "NULL" for column in columns)
        rows = self._database.execute(f"SELECT {chosen} FROM {table} LIMIT {_MAX_ROWS + 1}").fetchall()
        if len(rows) > _MAX_ROWS:
            raise RequestError(
                f"{self._file} holds more than {_MAX_ROWS:,} rows in {table}", hint="profile fewer steps"
            )
        return rows

    def _work(self) -> tuple[Work, tuple[str, ...]]:
        start, end, streams, names, ids, kinds, devices = (list[int]() for _ in range(7))
        known: dict[object, int] = {}
        for table, kind in _WORK.items():
            title = self._number(_TITLES.get(table, "kernel"))
            columns = (
                "start",
                "end",
                "deviceId",
                "streamId",
                "correlationId",
                "globalPid",
                "shortName",
                "demangledName",
            )
            for begun, over, device, stream, correlation, process, short, full in self._rows(table, *columns):
                if not (isinstance(begun, int) and isinstance(over, int) and begun <= over):
                    continue
                number = title
                for identity in (full, short):
                    if isinstance(identity, int) and identity in self._by_id:
                        number = self._by_id[identity]
                        break
                start.append(begun)
                end.append(over)
                devices.append(known.setdefault(device, len(known)))
                streams.append(stream if isinstance(stream, int) else -1)
                names.append(number)
                ids.append(_launch_id(correlation, process))
                kinds.append(kind)
        if not start:
            raise RequestError(
                f"{self._file} holds no GPU work",
                hint="profile with nsys profile --trace=cuda, on a machine with a GPU",
            )
        order = np.argsort(np.array(start, dtype=np.int64), kind="stable")
        columns_of = [
            np.array(column, dtype=np.int64)[order] for column in (start, end, streams, names, ids, kinds, devices)
        ]
        columns_of[5] = self._with_communication(columns_of[5], columns_of[3])
        return Work(*columns_of), tuple(str(device) for device in known)

    def _with_communication(self, kinds: Ints, names: Ints) -> Ints:
        spoken = [any(word in name[:80].lower() for word in _COMMUNICATION) for name in self._names]
        return np.where((kinds == KERNEL) & np.array(spoken, dtype=bool)[names], COMMUNICATION, kinds)

    def _host(self, table: str, *, keep: Callable[[str], bool], with_id: bool = False) -> Columns:
        """Calls of the host whose name is kept, with their launch id where asked."""
        kept = {number for name, number in self._names.items() if keep(name)}
        rows = []
        for begun, over, thread, name, correlation in self._rows(
            table, "start", "end", "globalTid", "nameId", "correlationId"
        ):
            number = self._by_id.get(name, -1) if isinstance(name, int) else -1
            if number in kept and isinstance(begun, int) and isinstance(over, int) and begun <= over:
                identity = _launch_id(correlation, thread) if with_id else 0
                rows.append((begun, over, self._thread(thread), number, identity))
        return _columns(rows)

    def _ranges(self) -> tuple[Columns, Columns]:
        """NVTX ranges: marks, and those that say an input is loaded."""
        marks: list[tuple[int, int, int, int, int]] = []
        loads: list[tuple[int, int, int, int, int]] = []
        known = list(self._names)
        for begun, over, text, identity, thread in self._rows(_NVTX, "start", "end", "text", "textId", "globalTid"):
            if not (isinstance(begun, int) and isinstance(over, int) and begun <= over):
                continue
            number = self._by_id.get(identity, -1) if isinstance(identity, int) else -1
            name = known[number] if number >= 0 else str(text or "")[:160]
            number = number if number >= 0 else self._number(name)
            target = loads if any(word in name.lower() for word in _LOADING) else marks
            target.append((begun, over, self._thread(thread), number, 0))
        return _columns(marks), _columns(loads)

    def _thread(self, serial: object) -> int:
        key = serial if isinstance(serial, int) else -1
        return self._threads.setdefault(key, len(self._threads))


def _launch_id(correlation: object, serial: object) -> int:
    """Correlation ids count in each process: the process goes into the upper bits."""
    if not isinstance(correlation, int) or not 0 <= correlation < 1 << 32:
        return -1
    process = (serial >> _PID_SHIFT) & _PID_MASK if isinstance(serial, int) else 0
    return (process << 32) | correlation


def _columns(rows: list[tuple[int, int, int, int, int]]) -> Columns:
    columns = Columns()
    if rows:
        table = np.array(rows, dtype=np.int64)
        columns.add(table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4])
    return columns
