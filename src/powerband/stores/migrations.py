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
    """Bring the tables up to this version, each step in one transaction."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(_STEPS):
        raise RequestError(
            f"the journal has version {version}, newer than this powerband knows ({len(_STEPS)})",
            hint="use the newer powerband, or another --home",
        )
    for number in range(version, len(_STEPS)):
        connection.executescript(f"BEGIN IMMEDIATE; {_STEPS[number]} PRAGMA user_version = {number + 1}; COMMIT;")
