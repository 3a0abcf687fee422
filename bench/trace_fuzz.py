"""Feed damaged and hostile traces to the readers: every one is read or refused with one line, in bounded memory.

    python bench/trace_fuzz.py --inputs 20000

Kineto traces are mutated as text (cut, flipped, repeated, numbers and types replaced, gzip cut off); Nsight Systems
exports of an older and a newer schema as bytes of the database and as rows, columns and types of its tables.
"""

import argparse
import gzip
import json
import random
import resource
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from powerband.locate.timeline import diagnose_timeline
from powerband.probes.kineto import read_kineto
from powerband.probes.nsys import read_nsys
from powerband.records.errors import RequestError
from powerband.records.timeline import Timeline

MOST_MB = 1000
WORDS: tuple[bytes, ...] = (
    b"null", b"NaN", b"-Infinity", b"1e400", b"-1", b"9223372036854775808", b'"x"', b"[]", b"{}", b"true", b"0.1",
    b"\x00", b"\xff\xfe", b"[" * 600, b'{"a":' * 300, b"1e-400", b"-9e18", b'""',
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, -1, 0, 1 << 62, -(1 << 62), (1 << 63) - 1, 2.5, 1e300, "text", "", b"\xff\x00", "9" * 40, 1 << 24, 10**18,
)  # fmt: skip


def kineto_seed() -> bytes:
    """Three steps with operators, launches, a graph, copies, communication, annotations and Python frames."""
    events: list[dict[str, Any]] = []
    for step in range(3):
        at = 1000.0 * step
        host = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**host, "cat": "user_annotation", "name": "execute_context_0(0)_generation_8(8)", "ts": at, "dur": 900},
            {**host, "cat": "python_function", "name": "dataloader.py(3): __next__", "ts": at + 10, "dur": 80},
            {**host, "cat": "python_function", "name": "queue.py(171): get", "ts": at + 20, "dur": 50},
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at + 100, "dur": 40},
        ]
        for k, (category, name) in enumerate(
            (("kernel", "gemm"), ("kernel", "ncclDevKernel_AllReduce"), ("gpu_memcpy", "Memcpy HtoD"),
             ("gpu_memset", "Memset"))
        ):  # fmt: skip
            number = 10 * step + k
            call = {**host, "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": at + 110 + 50 * k, "dur": 5}
            events.append({**call, "args": {"correlation": number}})
            work = {"ph": "X", "pid": 0, "tid": 7, "cat": category, "name": name, "ts": at + 130 + 50 * k, "dur": 20}
            events.append({**work, "args": {"correlation": number, "device": k % 2, "stream": 7}})
    return json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": events}).encode()


def mutate_text(data: bytes, dice: random.Random) -> bytes:
    whole = dice.random() < 0.5  # only values change, so that most of these are still JSON
    for _ in range(dice.randint(1, 6)):
        if not data:
            break
        at = dice.randrange(len(data))
        other = min(len(data), at + dice.randint(0, 200))
        kind = 5 if whole else dice.randrange(6)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
        elif kind == 2:
            data = data[:at] + dice.choice(WORDS) + data[other if dice.random() < 0.5 else at :]
        elif kind == 3:
            data = data[:at] + data[at:other] * dice.randint(2, 20) + data[other:]
        elif kind == 4:
            data = data[:at] + data[other:]
        else:
            data = _new_number(data, at, dice)
    if dice.random() < 0.2:
        data = gzip.compress(data, 1)
        if dice.random() < 0.5:
            data = data[: dice.randrange(len(data))]
    return data


def _new_number(data: bytes, at: int, dice: random.Random) -> bytes:
    """Replace the value after the next colon: times, ids and durations of every kind."""
    colon = data.find(b":", at)
    ends = [end for mark in (b",", b"}") if (end := data.find(mark, colon)) > 0]
    if colon < 0 or not ends:
        return data
    return data[: colon + 1] + dice.choice(WORDS) + data[min(ends) :]


def nsys_seed(path: Path, *, newer: bool) -> None:
    """Kernels, a copy, a graph, calls, OS calls and ranges, in the tables of releases of 2021 or of 2025."""
    base = sqlite3.connect(path)
    extra = "greenContextId INTEGER, graphNodeId INTEGER," if newer else ""
    work = f"start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, {extra} streamId INTEGER,"
    work += " correlationId INTEGER, globalPid INTEGER"
    base.executescript(
        f"""
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({work}, demangledName INTEGER, shortName INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({work}, bytes INTEGER, copyKind INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET ({work}, value INTEGER, bytes INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME
            (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
        CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);
        CREATE TABLE NVTX_EVENTS
            (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
        """
    )
    names = ["gemm", "ncclDevKernel", "cudaLaunchKernel", "cudaMemcpy", "poll", "dataloader.next", "step"]
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
    for k in range(20):
        at, more = 100_000 * k, ", 0, 0" if newer else ""
        shared = f"{at}, {at + 20_000}, {k % 2}, 1{more}, 7, {k}, {77 << 24}"
        base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({shared}, {k % 2}, {k % 2})")
        base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({shared}, 4096, 1)")
        call = (at - 5_000, at - 2_000, (77 << 24) + 5, k, 2)
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", call)
        base.execute("INSERT INTO OSRT_API VALUES (?, ?, ?, 4)", (at + 30_000, at + 60_000, (77 << 24) + 5))
        base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, 'range', 5, ?)", (at, at + 90_000, (77 << 24) + 5))
    base.commit()
    base.close()


def mutate_database(path: Path, seed: bytes, dice: random.Random) -> None:
    """Damage the file's bytes, or its tables by valid SQL."""
    path.write_bytes(seed)
    if dice.random() < 0.5:
        data = bytearray(seed)
        for _ in range(dice.randint(1, 30)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(bytes(data[: dice.randrange(len(data))]) if dice.random() < 0.3 else bytes(data))
        return
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("PRAGMA journal_mode = MEMORY")
    base.execute("PRAGMA synchronous = OFF")
    tables = [row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for _ in range(dice.randint(1, 6)):
        _change_table(base, dice.choice(tables), dice)
    base.close()


def _change_table(base: sqlite3.Connection, table: str, dice: random.Random) -> None:
    columns = [row[1] for row in base.execute(f"PRAGMA table_info({table})")]
    if not columns:
        return
    column = dice.choice(columns)
    kind = dice.randrange(6)
    try:
        if kind == 0:
            base.execute(f'UPDATE {table} SET "{column}" = ?', (dice.choice(VALUES),))
        elif kind == 1:
            where = f"rowid % {dice.randint(2, 5)} = 0"
            base.execute(f'UPDATE {table} SET "{column}" = ? WHERE {where}', (dice.choice(VALUES),))
        elif kind == 2:
            base.execute(f'ALTER TABLE {table} DROP COLUMN "{column}"')
        elif kind == 3:
            base.execute(f"DROP TABLE {table}")
        elif kind == 4:
            base.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO "{column}X"')
        else:
            base.execute(f"DROP TABLE {table}")
            forever = "WITH RECURSIVE r(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM r)"
            base.execute(f'CREATE VIEW {table} AS {forever} SELECT start, start AS "end" FROM r')
    except sqlite3.Error:
        return  # this change does not fit this table: the others are tried all the same


def feed(read: Callable[[Path], Timeline], path: Path) -> str:
    """Read or refused; the parts of a diagnosis must sum to its window, and a refusal is one line."""
    try:
        found = diagnose_timeline(read(path))
    except RequestError as error:
        if "\n" in error.message:
            raise AssertionError(f"refused in more than one line: {error.message}") from None
        return "refused"
    total = sum(part.seconds for part in found.breakdown)
    assert abs(total - found.window_s) <= 1e-6 * max(found.window_s, 1.0), (total, found.window_s)
    return "read"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failure"), help="where an input that fails is kept")
    args = parser.parse_args()
    dice, counted, began = random.Random(args.seed), Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        text, exports = kineto_seed(), []
        for newer in (False, True):
            nsys_seed(Path(folder) / f"seed-{newer}.sqlite", newer=newer)
            exports.append((Path(folder) / f"seed-{newer}.sqlite").read_bytes())
        path = Path(folder) / "input"
        for number in range(args.inputs):
            try:
                if number % 2:
                    path.write_bytes(mutate_text(text, dice))
                    counted["kineto " + feed(read_kineto, path)] += 1
                else:
                    mutate_database(path, dice.choice(exports), dice)
                    counted["nsys " + feed(read_nsys, path)] += 1
            except BaseException:
                args.keep.write_bytes(path.read_bytes())
                print(f"input {number} of seed {args.seed} failed; it is kept as {args.keep}", file=sys.stderr)
                raise
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{args.inputs} inputs in {time.monotonic() - began:.0f} s, {peak_mb:.0f} MB at most: {dict(counted)}")
    return 0 if peak_mb <= MOST_MB else 1


if __name__ == "__main__":
    sys.exit(main())
