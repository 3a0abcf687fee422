"""Runs of the journal by name: a run, or all usable runs of a session."""

from collections.abc import Sequence

from powerband.records.run import Run
from powerband.stores.sqlite import Journal


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
