"""Who runs a session now: the process that holds its lock, which the system lets go however that process ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from powerband.records.errors import RequestError
from powerband.stores.base import Session
from powerband.stores.sqlite import Journal


@contextmanager
def locked(journal: Journal, session: Session) -> Iterator[None]:
    """Hold the session against a second process; RequestError where one has it."""
    path = _path(journal, session)
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"session {session.session_id} is being run by another process"
            raise RequestError(message, hint="wait for it, or start a new session") from None
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def status_of(journal: Journal, session: Session) -> str:
    """Its status, or ``killed`` where the journal says ``running`` and nobody runs it."""
    if session.status != "running":
        return session.status
    try:
        with _path(journal, session).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return session.status
    except OSError:
        return "killed"  # its process died before it had a lock, or its home was copied
    return "killed"


def _path(journal: Journal, session: Session) -> Path:
    return journal.home / "sessions" / f"{session.session_id}.lock"
