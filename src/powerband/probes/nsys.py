"""Read an Nsight Systems report exported to SQLite into the timeline of its busiest device.

Tables as of the exports of 2021 to 2026: kernels, copies, sets and whole graphs of CUPTI, CUDA calls, OS calls and NVTX
ranges. Which tables and columns there are depends on version and options, so each is asked for before it is read.
"""

import sqlite3
from collections.abc import Callable, Iterator
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
# Beyond this the columns alone need more than a gigabyte.
_MAX_ROWS = 5_000_000
_BLOCK_ROWS = 1 << 16
_MAX_NAMES, _NAME_LENGTH, _MAX_NAMED_RANGES = 200_000, 160, 1_000_000
# Times beyond a century, or a piece of work of 11 days, are damage: their sums would not fit 64 bits.
_MAX_NS, _MAX_LENGTH_NS = 3 * 10**18, 10**15
_MAX_VALUE_BYTES = 1 << 20
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
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
            database.execute("PRAGMA trusted_schema = OFF")
            return _Export(database, path.name).read()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's message may quote damaged bytes
        said = "its schema is damaged" if isinstance(error, UnicodeDecodeError) else " ".join(str(error).split())
        raise RequestError(f"{path.name} cannot be read: {said}", hint=_HINT) from None


class _Export:
    """One open export: its tables, and its names as numbers."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database, self._file = database, name
        # Views are not read: exports have none that matter, and one could be made to go on for ever.
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables = {str(row[0]) for row in tables}
        self._names: dict[str, int] = {}
        self._by_id: dict[int, int] = {}
        self._threads: dict[int, int] = {}
        self._left_out: dict[str, int] = {}

    def read(self) -> Timeline:
        if not self._tables & {*_WORK, _CALLS}:
            raise RequestError(f"{self._file} is no Nsight Systems export with CUDA activity", hint=_HINT)
        self._read_names()
        work, devices = self._work()
        calls = self._host(_CALLS, "correlationId", keep=lambda name: True)
        notes = [] if _CALLS in self._tables else ["the report holds no CUDA calls: launches are not known"]
        waits = self._host(_OS, keep=lambda name: any(word in name.lower() for word in _WAITING))
        if not waits.pieces and calls.pieces:
            notes.append(
                "no OS calls were traced: host waits cannot be told from host work (nsys profile --trace=osrt)"
            )
        marks, loads = self._ranges()
        notes += [
            f"{count} rows of {table} without a usable time were left out" for table, count in self._left_out.items()
        ]
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

    def _columns_of(self, table: str) -> set[str]:
        return {str(row[1]) for row in self._database.execute(f"PRAGMA table_info({table})")}

    def _read_names(self) -> None:
        if "StringIds" not in self._tables or not {"id", "value"} <= self._columns_of("StringIds"):
            return
        asked = f"SELECT id, substr(value, 1, {_NAME_LENGTH}) FROM StringIds"
        asked += " WHERE typeof(id) = 'integer' AND typeof(value) = 'text'"
        for identity, value in self._database.execute(asked):
            self._by_id[identity] = self._number(value)

    def _number(self, name: str) -> int:
        if name not in self._names and len(self._names) >= _MAX_NAMES:
            name = "(other names)"
        return self._names.setdefault(name, len(self._names))

    def _blocks(self, table: str, *columns: str) -> Iterator[Ints]:
        """Start, end and the other columns of a table's usable rows, a block at a time.

        What a version does not have, or holds something else than a whole number, reads as -1; an absent table gives
        nothing. Rows whose times are no whole numbers, run backwards or lie out of range are counted and left out.
        """
        there = self._columns_of(table) if table in self._tables else set()
        if not {"start", "end"} <= there:
            return
        chosen = [
            f'CASE typeof("{column}") WHEN \'integer\' THEN "{column}" ELSE -1 END'
            if column in {*there, "rowid"}
            else "-1"
            for column in columns
        ]
        usable = "typeof(start) = 'integer' AND typeof(\"end\") = 'integer'"
        usable += f' AND start BETWEEN {-_MAX_NS} AND {_MAX_NS} AND "end" BETWEEN start AND start + {_MAX_LENGTH_NS}'
        (total,) = self._database.execute(f"SELECT count(*) FROM {table}").fetchone()
        if total > _MAX_ROWS:
            raise RequestError(
                f"{self._file} holds more than {_MAX_ROWS:,} rows in {table}", hint="profile fewer steps"
            )
        kept = 0
        wanted = ", ".join(("start", '"end"', *chosen))
        rows = self._database.execute(f"SELECT {wanted} FROM {table} WHERE {usable}")
        while block := rows.fetchmany(_BLOCK_ROWS):
            kept += len(block)
            yield np.array(block, dtype=np.int64)
        if kept < total:
            self._left_out[table] = total - kept

    def _numbers_of(self, ids: Ints, otherwise: int) -> Ints:
        """The number of each string id's name; ids that name nothing give ``otherwise``."""
        found, place = np.unique(ids, return_inverse=True)
        numbers = [self._by_id.get(identity, otherwise) for identity in found.tolist()]
        return np.array(numbers, dtype=np.int64)[place.reshape(-1)]

    def _work(self) -> tuple[Work, tuple[str, ...]]:
        pieces: list[Ints] = []  # start, end, stream, name, launch id, kind, device
        known: dict[int, int] = {}
        for table, kind in _WORK.items():
            title = self._number(_TITLES.get(table, "kernel"))
            columns = ("deviceId", "streamId", "correlationId", "globalPid", "shortName", "demangledName")
            for rows in self._blocks(table, *columns):
                start, end, device, stream, correlation, process, short, full = rows.T
                names = self._numbers_of(full, -1)
                names = np.where(names >= 0, names, self._numbers_of(short, title))
                launch = _launch_ids(correlation, process)
                kinds = np.full(start.size, kind, dtype=np.int64)
                pieces.append(np.stack([start, end, stream, names, launch, kinds, _indexed(device, known)]))
                if sum(piece.shape[1] for piece in pieces) > _MAX_ROWS:
                    raise RequestError(
                        f"{self._file} holds more than {_MAX_ROWS:,} pieces of device work", hint="profile fewer steps"
                    )
        if not pieces:
            raise RequestError(
                f"{self._file} holds no GPU work",
                hint="profile with nsys profile --trace=cuda, on a machine with a GPU",
            )
        table_of = np.concatenate(pieces, axis=1)
        pieces.clear()
        order = np.argsort(table_of[0], kind="stable")
        start, end, stream, names, launch, kinds, device = (column[order] for column in table_of)
        kinds = self._with_communication(kinds, names)
        return Work(start, end, stream, names, launch, kinds, device), tuple(str(device) for device in known)

    def _with_communication(self, kinds: Ints, names: Ints) -> Ints:
        spoken = [any(word in name[:80].lower() for word in _COMMUNICATION) for name in self._names]
        return np.where((kinds == KERNEL) & np.array(spoken, dtype=bool)[names], COMMUNICATION, kinds)

    def _host(self, table: str, identity: str = "", *, keep: Callable[[str], bool]) -> Columns:
        """Calls of the host whose name is kept, with their launch id where a column gives it."""
        kept = np.array([number for name, number in self._names.items() if keep(name)], dtype=np.int64)
        columns = Columns()
        for rows in self._blocks(table, "globalTid", "nameId", *([identity] if identity else [])):
            start, end, thread, name = rows.T[:4]
            number = self._numbers_of(name, -1)
            chosen = np.isin(number, kept)
            launch = _launch_ids(rows.T[4], thread) if identity else np.zeros_like(start)
            mine = _indexed(thread, self._threads)
            columns.add(start[chosen], end[chosen], mine[chosen], number[chosen], launch[chosen])
        return columns

    def _ranges(self) -> tuple[Columns, Columns]:
        """NVTX ranges: marks, and those that say an input is loaded."""
        marks, loads = Columns(), Columns()
        texts = self._range_texts()
        for rows in self._blocks(_NVTX, "textId", "globalTid", "rowid"):
            start, end, identity, thread, row = rows.T
            number = self._numbers_of(identity, -1)
            own = np.array([texts.get(key, -1) for key in row.tolist()], dtype=np.int64)
            number = np.where(number >= 0, number, own)
            named = list(self._names)
            loading = np.array([any(w in name.lower() for w in _LOADING) for name in named] or [False], dtype=bool)
            load = loading[np.maximum(number, 0)] & (number >= 0)
            mine = _indexed(thread, self._threads)
            for columns, chosen in ((loads, load), (marks, ~load & (number >= 0))):
                columns.add(start[chosen], end[chosen], mine[chosen], number[chosen])
        return marks, loads

    def _range_texts(self) -> dict[int, int]:
        """Texts that stand in the row itself, by its number."""
        if _NVTX not in self._tables or "text" not in self._columns_of(_NVTX):
            return {}
        asked = f"SELECT rowid, substr(text, 1, {_NAME_LENGTH}) FROM {_NVTX} WHERE typeof(text) = 'text'"
        return {row: self._number(text) for row, text in self._database.execute(f"{asked} LIMIT {_MAX_NAMED_RANGES}")}


def _indexed(values: Ints, known: dict[int, int]) -> Ints:
    """Values as small numbers, in the order in which they were met."""
    found, place = np.unique(values, return_inverse=True)
    numbers = [known.setdefault(value, len(known)) for value in found.tolist()]
    return np.array(numbers, dtype=np.int64)[place.reshape(-1)]


def _launch_ids(correlation: Ints, serial: Ints) -> Ints:
    """Correlation ids count in each process: the process goes into the upper bits. -1 where there is none."""
    usable = (correlation >= 0) & (correlation < 1 << 32)
    process = np.where(serial >= 0, (serial >> _PID_SHIFT) & _PID_MASK, 0)
    return np.where(usable, (process << 32) | correlation, -1)
