"""The door for stores: what a journal must be able to do, and the rows it keeps."""

from collections.abc import Collection
from pathlib import Path
from typing import Literal, Protocol

from powerband.records.run import Run, Trial
from powerband.records.value import Record

SessionStatus = Literal["running", "done", "stopped", "failed"]


class Session(Record):
    """One call of a command that makes trials; ``request`` is the JSON of what was asked, enough to go on with it, or
    the command line of one that cannot be gone on with."""

    session_id: str
    command: str
    request: str
    started_at: str
    status: SessionStatus
    note: str = ""


class Store(Protocol):
    """Keeps every finished trial the moment it finishes, with its raw evidence.

    ``key`` names a trial's place in its session ("baseline", "tune-3", "after-2"): asking for a key that is there gives
    the stored trial, which is how a resumed session goes on without repeating one.
    """

    def begin(self, command: str, request: str) -> Session: ...

    def go_on(self, session_id: str) -> None:
        """It runs, or runs again."""

    def end(self, session_id: str, status: SessionStatus, note: str = "") -> None: ...

    def forget(self, session_id: str) -> None:
        """Take out a session that has no trial."""

    def session(self, session_id: str | None) -> Session:
        """The session of that id, or the latest where it is None; RequestError where there is none."""

    def sessions(self) -> list[Session]: ...

    def run_folder(self, run_id: str) -> Path:
        """Where a run's raw evidence goes; made on first use."""

    def add_trial(
        self, session_id: str, key: str, trial: Trial, run: Run | None, *, written: Collection[str] = ()
    ) -> None:
        """Write the run's evidence, then commit the trial; either both are there or neither.

        ``written`` names lists of the run that its folder holds already (``traces``).
        """

    def trial(self, session_id: str, key: str) -> Trial | None: ...

    def trials(self, session_id: str) -> list[Trial]: ...

    def run(self, run_id: str) -> Run:
        """The stored run; RequestError with near ids where there is none."""

    def put_document(self, session_id: str, name: str, document: bytes) -> None: ...

    def document(self, session_id: str, name: str) -> bytes | None: ...
