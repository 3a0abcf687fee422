"""What a home holds by name: its journal, a loop, a run, or all usable runs of a session."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from powerband.records.errors import MachineError, RequestError
from powerband.records.run import Run
from powerband.stores.base import Session
from powerband.stores.sqlite import Journal

RESUMABLE = ("loop", "tune")  # those that have a page, too
_Document = TypeVar("_Document")


def open_journal(home: Path) -> Journal:
    """The journal that is there already: only looking begins none."""
    if not (home / "journal.sqlite").is_file():
        raise RequestError(f"no journal in {home}", hint="start one with: powerband loop MODEL ..., or give --home")
    return Journal(home)


def stored_document(journal: Journal, session: Session, name: str, kind: type[_Document]) -> _Document | None:
    """What a session left under ``name``; MachineError for what is damaged, or of another version of powerband."""
    body = journal.document(session.session_id, name)
    try:
        return None if body is None else msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise MachineError(
            f"the report of {session.session_id} cannot be read: {error}",
            hint="its runs can be: powerband locate RUN, powerband verify RUN RUN",
        ) from error


def stored_runs(journal: Journal, names: Sequence[str]) -> list[Run]:
    """Raises RequestError where a name is neither a session's nor a run's."""
    sessions = {session.session_id for session in journal.sessions()}
    found: list[Run] = []
    for name in names:
        if name in sessions:
            done = [trial.run_id for trial in journal.trials(name) if trial.status == "done"]
            found += [journal.run(run_id) for run_id in done if run_id is not None]
        else:
            found.append(journal.run(name))
    return found


def calibrating_runs(journal: Journal, names: Sequence[str], engines: Sequence[str]) -> list[Run]:
    """Those of ``engines``: the steps of another say nothing; RequestError where names were given and none is left."""
    found = stored_runs(journal, names)
    kept = [run for run in found if run.config.engine in engines]
    if names and not kept:
        seen = ", ".join(sorted({run.config.engine for run in found})) or "none"
        hint = f"name runs of {', '.join(engines)}; powerband journal lists them"
        raise RequestError(f"--calibrate {', '.join(names)} holds no run of this engine (seen: {seen})", hint=hint)
    return kept


def loop_session(journal: Journal, name: str | None) -> Session:
    """The session of that name, or the last loop or tune, whatever else came after it; RequestError without one."""
    if name is not None:
        return journal.session(name)
    loops = [session for session in journal.sessions() if session.command in RESUMABLE]
    if not loops:
        raise RequestError(f"the journal in {journal.home} holds no loop", hint="start one: powerband loop MODEL ...")
    return loops[-1]
