"""Read the operators of a torch.profiler trace that holds no device work: a program on the CPU."""

from collections import Counter
from pathlib import Path

import numpy as np

from powerband.probes.trace_columns import Columns, Index, read_times
from powerband.probes.trace_events import Event, read_events
from powerband.records.errors import RequestError
from powerband.records.timeline import HostOps, Ints, Spans

_OPS = ("cpu_op", "Operator")
_MARKS = ("user_annotation",)
_MAX_EVENTS = 5_000_000


def read_host_ops(path: Path, mark: str) -> HostOps:
    """The operators of the thread that did most, and the spans whose name starts with ``mark``.

    Raises RequestError (one line and a hint) where the file cannot be read or holds no operator.
    """
    ops, marks, names, threads = Columns(), Columns(), Index(), Index()
    odd: Counter[str] = Counter()
    total = 0
    for events in read_events(path):
        total += len(events)
        if total > _MAX_EVENTS:
            raise RequestError(f"{path.name} holds more than {_MAX_EVENTS:,} events", hint="record fewer steps")
        for categories, columns, wanted in ((_OPS, ops, ""), (_MARKS, marks, mark)):
            chosen = [e for e in events if e.ph == "X" and e.cat in categories and str(e.name).startswith(wanted)]
            _take(chosen, columns, names, threads, odd)
    if ops.empty:
        raise RequestError(f"{path.name} holds no operator in {total} events", hint="was anything of torch run?")
    op_columns, mark_columns = ops.table(), marks.table()
    spent = np.bincount(op_columns[2], weights=(op_columns[1] - op_columns[0]).astype(float))
    busiest = int(mark_columns[2][0]) if mark_columns[2].size else int(np.argmax(spent))
    if not (op_columns[2] == busiest).any():
        busiest = int(np.argmax(spent))
    zero_ns = int(op_columns[0].min())
    return HostOps(
        source=path.name,
        ops=_of_thread(op_columns, busiest, zero_ns),
        steps=_of_thread(mark_columns, busiest, zero_ns),
        names=names.texts(),
        others=int(np.count_nonzero(op_columns[2] != busiest)),
        notes=tuple(f"{count} events {what} were left out" for what, count in odd.items()),
    )


def _take(rows: list[Event], columns: Columns, names: Index, threads: Index, odd: Counter[str]) -> None:
    if not rows:
        return
    start, end, kept = read_times(rows, odd)
    rows = rows if kept.size == len(rows) else [rows[k] for k in kept.tolist()]
    thread = threads.of_all([row.pid for row in rows], [row.tid for row in rows])
    columns.add(start, end, thread, names.of_all([row.name for row in rows]))


def _of_thread(table: tuple[Ints, ...], thread: int, zero_ns: int) -> Spans:
    mine = table[2] == thread
    return Spans(table[0][mine] - zero_ns, table[1][mine] - zero_ns, table[2][mine], table[3][mine])
