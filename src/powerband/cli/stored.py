"""What a home holds by name: its journal, a loop, a run, or all usable runs of a session."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from powerband.engines.base import get_engine
from powerband.probes.device import device_catalogue, match_card
from powerband.records.config import EngineConfig
from powerband.records.errors import MachineError, RequestError
from powerband.records.hardware import DeviceSpec
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
    """Each once; raises RequestError where a name is neither a session's nor a run's."""
    sessions = {session.session_id for session in journal.sessions()}
    found: list[str] = []
    for name in names:
        if name in sessions:
            found += [trial.run_id for trial in journal.trials(name) if trial.status == "done" and trial.run_id]
        else:
            found.append(name)
    return [journal.run(run_id) for run_id in dict.fromkeys(found)]


def calibrating_runs(
    journal: Journal, names: Sequence[str], configs: Sequence[EngineConfig], device: DeviceSpec | None
) -> list[Run]:
    """Those of an engine and model of ``configs`` on ``device``: the steps of others say nothing.

    RequestError where names were given and none is left.
    """
    engines = {config.engine for config in configs}
    models = {(config.engine, _model_name(config)) for config in configs}
    rows: list[tuple[str, Collection[str], Callable[[Run], bool], Callable[[Run], str]]] = [
        ("of this engine", engines, lambda run: run.config.engine in engines, lambda run: run.config.engine),
        (
            "of this model",
            {name for _, name in models},
            lambda run: (run.config.engine, _model_name(run.config)) in models,
            lambda run: _model_name(run.config),
        ),
        ("on this device", [device.name if device else ""], lambda run: _may_be_on(device, run), _cards),
    ]
    kept = stored_runs(journal, names)
    for what, wanted, counts, name_of in rows:
        seen = ", ".join(sorted({name_of(run) for run in kept})) or "none"
        kept = [run for run in kept if counts(run)]
        if names and not kept:
            hint = f"name runs {what.split()[0]} {', '.join(sorted(wanted))}; powerband journal lists them"
            raise RequestError(f"--calibrate {', '.join(names)} holds no run {what} (seen: {seen})", hint=hint)
    return kept


def _model_name(config: EngineConfig) -> str:
    """A model's own name, of a hub id as of a path; empty where the engine reads no model from here."""
    if not get_engine(config.engine).loads_model:
        return ""
    parts = Path(config.model).parts or Path(config.model).resolve().parts
    cached = next((part for part in parts if part.startswith("models--")), None)  # as in the hub's cache
    return cached.split("--")[-1] if cached else parts[-1]


def _cards(run: Run) -> str:
    return ", ".join(sorted({sample.name for sample in run.device_samples}))


def _may_be_on(device: DeviceSpec | None, run: Run) -> bool:
    """Not where the driver named other cards; a device that the user describes cannot be told from them."""
    if device is None or device.kind != "gpu" or device.name not in device_catalogue() or not run.device_samples:
        return True
    try:
        return any(
            match_card(name, device.memory_bytes, "").name == device.name
            for name in {sample.name for sample in run.device_samples}
        )
    except RequestError:
        return False


def loop_session(journal: Journal, name: str | None) -> Session:
    """The session of that name, or the last loop or tune, whatever else came after it; RequestError without one."""
    if name is not None:
        return journal.session(name)
    loops = [session for session in journal.sessions() if session.command in RESUMABLE]
    if not loops:
        raise RequestError(f"the journal in {journal.home} holds no loop", hint="start one: powerband loop MODEL ...")
    return loops[-1]
