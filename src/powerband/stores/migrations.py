"""The journal's tables, one step a version; a journal of a newer version is refused, an older one is brought up."""

import sqlite3

from powerband.records.errors import RequestError

_STEPS = (
    """
    CREATE TABLE session (
        session_id TEXT PRIMARY KEY, command TEXT NOT NULL, request TEXT NOT NULL,
        started_at TEXT NOT NULL, status TEXT NOT NULL, note TEXT NOT NULL DEFAULT ''
    );
    CREATE TABLE trial (
        session_id TEXT NOT NULL REFERENCES session, key TEXT NOT NULL, n INTEGER NOT NULL,
        run_id TEXT, record BLOB NOT NULL, PRIMARY KEY (session_id, key)
    );
    CREATE INDEX trial_by_run ON trial (run_id);
    CREATE TABLE document (
        session_id TEXT NOT NULL REFERENCES session, name TEXT NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (session_id, name)
    );
    """,
)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables up to this version in one transaction; of several processes that begin at once, one does it."""
    if _version(connection) == len(_STEPS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in range(_version(connection), len(_STEPS)):
            for statement in _STEPS[number].split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(_STEPS):
        raise RequestError(
            f"the journal has version {version}, newer than this powerband knows ({len(_STEPS)})",
            hint="use the newer powerband, or another --home",
        )
    return version
