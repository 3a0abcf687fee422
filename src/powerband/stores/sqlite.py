"""The built-in store: journal.sqlite (WAL) and runs/RUN_ID/ under one home folder."""

import contextlib
import datetime
import sqlite3
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from powerband.records.errors import MachineError, RequestError, unknown_name
from powerband.records.run import Run, Trial
from powerband.stores import run_dir
from powerband.stores.base import Session, SessionStatus
from powerband.stores.migrations import migrate

_WAIT_S = 30.0  # for another process that writes
_DAMAGED = "move the journal away, or choose another --home; the evidence in runs/ can still be read by its folder"


class Journal:
    """A Store on this machine's disk. Raises RequestError for a home that is no journal, MachineError when it cannot
    be written."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock = threading.Lock()
        try:
            home.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                home / "journal.sqlite", timeout=_WAIT_S, check_same_thread=False, isolation_level=None
            )
            _write_ahead(self._db)
            self._db.execute("PRAGMA synchronous=FULL")  # a finished trial survives a power cut
            migrate(self._db)
        except sqlite3.DatabaseError as error:
            hint = "move it away, or choose another --home"
            raise RequestError(f"{home / 'journal.sqlite'} is not a journal: {error}", hint=hint) from error
        except OSError as error:
            raise RequestError(f"cannot use {home} as home: {error.strerror}", hint="choose another --home") from error

    def close(self) -> None:
        self._db.close()

    def begin(self, command: str, request: str) -> Session:
        now = datetime.datetime.now(datetime.UTC)
        stem = f"{command}-{now:%Y%m%d-%H%M%S}"
        with self._lock, self._writing():
            taken = {row[0] for row in self._rows("SELECT session_id FROM session WHERE session_id LIKE ?", f"{stem}%")}
            name = next(n for n in (stem, *(f"{stem}-{i}" for i in range(2, 10_000))) if n not in taken)
            session = Session(
                session_id=name, command=command, request=request, started_at=now.isoformat(), status="running"
            )
            row = (name, command, request, session.started_at, session.status, session.note)
            self._db.execute("INSERT INTO session VALUES (?,?,?,?,?,?)", row)
        return session

    def go_on(self, session_id: str) -> None:
        self.end(session_id, "running")

    def end(self, session_id: str, status: SessionStatus, note: str = "") -> None:
        with self._lock, self._writing():
            self._db.execute("UPDATE session SET status=?, note=? WHERE session_id=?", (status, note, session_id))

    def forget(self, session_id: str) -> None:
        unused = "DELETE FROM session WHERE session_id=? AND session_id NOT IN (SELECT session_id FROM trial)"
        with self._lock, self._writing():
            self._db.execute(unused, (session_id,))

    def session(self, session_id: str | None) -> Session:
        sessions = self.sessions()
        if not sessions:
            raise RequestError(f"the journal in {self.home} is empty", hint="start one with: powerband loop MODEL ...")
        if session_id is None:
            return sessions[-1]
        found = next((session for session in sessions if session.session_id == session_id), None)
        if found is None:
            raise unknown_name("session", session_id, [session.session_id for session in sessions])
        return found

    def sessions(self) -> list[Session]:
        rows = self._rows("SELECT * FROM session ORDER BY started_at, rowid")
        fields = Session.__struct_fields__
        try:
            return [msgspec.convert(dict(zip(fields, row, strict=True)), Session) for row in rows]
        except (msgspec.ValidationError, ValueError) as error:
            raise self._damaged(error) from error

    def run_folder(self, run_id: str) -> Path:
        folder = self.home / "runs" / run_id
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def add_trial(
        self, session_id: str, key: str, trial: Trial, run: Run | None, *, written: Collection[str] = ()
    ) -> None:
        if run is not None:
            try:
                run_dir.write_run(self.run_folder(run.run_id), run, written=written)
            except OSError as error:
                raise MachineError(
                    f"cannot write the run's evidence: {error}", hint="free disk space, then --resume"
                ) from error
        with self._lock, self._writing():
            row = (session_id, key, trial.n, trial.run_id, msgspec.json.encode(trial))
            self._db.execute("INSERT INTO trial VALUES (?,?,?,?,?)", row)

    def trial(self, session_id: str, key: str) -> Trial | None:
        rows = self._rows("SELECT record FROM trial WHERE session_id=? AND key=?", session_id, key)
        return self._trial(rows[0][0]) if rows else None

    def trials(self, session_id: str) -> list[Trial]:
        rows = self._rows("SELECT record FROM trial WHERE session_id=? ORDER BY n", session_id)
        return [self._trial(row[0]) for row in rows]

    def run(self, run_id: str) -> Run:
        return run_dir.read_run(run_dir.find_run(self.home, run_id))

    def put_document(self, session_id: str, name: str, document: bytes) -> None:
        with self._lock, self._writing():
            self._db.execute("INSERT OR REPLACE INTO document VALUES (?,?,?)", (session_id, name, document))

    def document(self, session_id: str, name: str) -> bytes | None:
        rows = self._rows("SELECT body FROM document WHERE session_id=? AND name=?", session_id, name)
        return bytes(rows[0][0]) if rows else None

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    def _trial(self, record: bytes) -> Trial:
        try:
            return msgspec.json.decode(record, type=Trial)
        except msgspec.DecodeError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> MachineError:
        return MachineError(f"{self.home / 'journal.sqlite'} cannot be read: {error}", hint=_DAMAGED)

    def _writing(self) -> "_Writing":
        return _Writing(self._db)


def _write_ahead(db: sqlite3.Connection) -> None:
    """Turn the log on; for this one statement sqlite does not wait for another process that begins as well."""
    until_s = time.monotonic() + _WAIT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(0.01)


class _Writing:
    """One transaction; a disk that fails becomes a MachineError that says what to do."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.DatabaseError as error:
            raise _unwritten(error) from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if error is None:
                self._db.execute("COMMIT")
                return
        except sqlite3.DatabaseError as failed:
            error = failed
        with contextlib.suppress(sqlite3.DatabaseError):  # sqlite has rolled back by itself where it had to
            self._db.execute("ROLLBACK")
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
            raise _unwritten(error) from error


def _unwritten(error: Exception) -> MachineError:
    full = isinstance(error, sqlite3.OperationalError)
    hint = "check disk space, then --resume" if full else _DAMAGED
    return MachineError(f"the journal cannot be written: {error}", hint=hint)
