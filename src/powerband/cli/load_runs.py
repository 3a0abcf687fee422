"""Runs of the load command on disk: begun before the first request, readable after a kill, whole at the end."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from powerband.cli.command_line import command_line, option_in
from powerband.cli.session_lock import locked
from powerband.load.peer_logs import read_peer_log
from powerband.load.runner import run_load
from powerband.load.stop_rules import Stop
from powerband.load.target import Loaded, Progress, Target
from powerband.load.trace_log import read_traces
from powerband.probes.provenance import read_provenance
from powerband.records.columns import Columns
from powerband.records.config import EngineConfig
from powerband.records.errors import PowerbandError, RequestError
from powerband.records.metrics import Metrics
from powerband.records.request import RequestTrace
from powerband.records.run import Run, Trial, TrialStatus
from powerband.records.slo import Slo, parse_slo
from powerband.records.units import format_duration, ns_to_s, s_to_ns
from powerband.records.value import Missing
from powerband.records.workload import Workload
from powerband.stores.run_dir import BEGUN, find_run, is_run, new_run_id, read_run
from powerband.stores.sqlite import Journal

_LOG = "traces.jsonl.gz"


class Recorder:
    """One session of the journal; ``measure`` runs a workload and stores it as a trial of its own."""

    def __init__(self, home: Path, target: Target, slo: Slo | None) -> None:
        self._journal, self._target, self._slo = Journal(home), target, slo
        self._command = command_line()
        self._session = self._journal.begin("load", self._command)
        self._n, self._answered, self._interrupted, self._why = 0, False, False, ""
        self._lock = locked(self._journal, self._session)

    def __enter__(self) -> "Recorder":
        self._lock.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        status: Literal["done", "failed", "stopped"] = "done"
        note = ""
        if error is not None:
            status, note = "failed" if isinstance(error, PowerbandError) else "stopped", str(error)
        elif self._interrupted:
            status, note = "stopped", "interrupted"
        elif not self._answered:
            status, note = "failed", self._why
        self._journal.end(self._session.session_id, status, note)
        self._lock.__exit__(None, None, None)

    def measure(
        self,
        workload: Workload,
        *,
        deadline_s: float,
        workers: int,
        stop: Stop,
        progress: Callable[[Progress], None] | None,
    ) -> tuple["LoadRun", Loaded]:
        """Run it and store it; the run's folder can be read from its first second on."""
        self._n += 1
        run_id = new_run_id("load")
        folder = self._journal.run_folder(run_id)
        begun = self._begun(run_id, workload)
        (folder / BEGUN).write_bytes(msgspec.json.encode(begun))
        loaded = run_load(
            self._target,
            workload,
            t0_ns=time.monotonic_ns(),
            deadline_s=deadline_s,
            progress=progress,
            workers=workers,
            stop=stop,
            trace_log=folder / _LOG,
        )
        run = msgspec.structs.replace(
            begun, workload=workload, end_ns=loaded.end_ns, client=loaded.client, notes=loaded.notes
        )
        status, cause = self._judge(loaded)
        trial = Trial(
            n=self._n,
            purpose="load",
            config=run.config,
            status=status,
            measured=loaded.columns.metrics(self._slo, loaded.end_ns),
            run_id=run_id,
            cause=cause,
        )
        self._journal.add_trial(self._session.session_id, f"load-{self._n}", trial, run, written=["traces"])
        (folder / BEGUN).unlink()
        return LoadRun(run, _reader([folder / _LOG]), loaded.columns), loaded

    def _judge(self, loaded: Loaded) -> tuple[TrialStatus, str | None]:
        """What a run was, and what it makes of the session: of several, one that was answered is enough."""
        self._interrupted = loaded.stopped_because == "interrupted"
        answered = loaded.columns.completed > 0
        self._answered |= answered
        self._why = f"no request was answered: {loaded.columns.first_error or 'none ended in time'}"
        if loaded.client.verdict == "limited":
            return "client_limited", loaded.client.reason
        return ("done", None) if answered else ("failed", self._why)

    def _begun(self, run_id: str, workload: Workload) -> Run:
        short = msgspec.structs.replace(workload, requests=workload.requests[:0])
        return Run(
            run_id=run_id,
            basis="measured",
            config=EngineConfig(engine="openai", model=self._target.model),
            effective=Missing(missing="the server is not ours; it was not asked for its settings"),
            workload=short,
            traces=(),
            end_ns=0,
            provenance=read_provenance(self._command),
            notes=(f"{len(workload.requests)} requests were planned",),
        )


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A run whose traces stay where they are, to be read again; ``columns`` has what its figures need."""

    run: Run
    traces: Callable[[], Iterator[RequestTrace]]
    columns: Columns

    def metrics(self, slo: Slo | None) -> Metrics:
        return self.columns.metrics(slo, self.run.end_ns)

    def without_warmup(self, warmup_s: float) -> "LoadRun":
        """The run as if it had begun ``warmup_s`` later: requests due before are left out.

        Raises RequestError where none is left: nothing was measured then, and a rate of 0 would say that it was.
        """
        if warmup_s <= 0 or not len(self.columns):
            return self
        due_s = ns_to_s(int(self.columns.t_sched_ns.max() - self.columns.t_sched_ns.min()))
        if due_s < warmup_s:
            raise RequestError(
                f"--warmup {warmup_s:g} leaves none of the {len(self.columns)} requests of {self.run.run_id}: "
                f"the last was due at {due_s:.3g} s",
                hint=f"the run is kept; see it whole: powerband load --show {self.run.run_id}",
            )
        begin_ns = int(self.columns.t_sched_ns.min()) + s_to_ns(warmup_s)
        kept = Columns(trace for trace in self.traces() if trace.t_sched_ns >= begin_ns)
        left = len(self.columns) - len(kept)
        note = f"warm-up: {left} requests of the first {format_duration(warmup_s)} are not counted"
        run = msgspec.structs.replace(self.run, notes=(*self.run.notes, note))
        return LoadRun(run, self.traces, kept)


def stored_run(home: Path, text: str) -> LoadRun:
    """A run by its id, its folder (also of one that was killed), or another tool's log; RequestError without one."""
    if Path(text).is_file():
        return _peer_run(Path(text))
    folder = Path(text) if is_run(Path(text)) else find_run(home, text)
    if not (folder / "run.json").is_file():
        return _killed_run(folder)
    read = _reader([folder / _LOG], whole=True)
    return LoadRun(read_run(folder, without=["traces"]), read, Columns(read()))


def promise_of(run: Run) -> Slo | None:
    """The SLO that a run was made with, as its command line says."""
    said = None if isinstance(run.provenance, Missing) else option_in(run.provenance.command, "--slo")
    try:
        return parse_slo(said) if said else None
    except RequestError:  # of another version
        return None


def _reader(logs: Sequence[Path], *, whole: bool = False) -> Callable[[], Iterator[RequestTrace]]:
    return lambda: (trace for log in logs for trace in read_traces(log, whole=whole))


def _peer_run(path: Path) -> LoadRun:
    """What another load generator recorded, under this tool's definitions."""
    log = read_peer_log(path)
    columns = Columns(log.traces)
    run = Run(
        run_id=path.name,
        basis="measured",
        config=EngineConfig(engine="openai", model="unknown"),
        effective=Missing(missing="not recorded"),
        workload=Workload(requests=(), source=f"{log.tool}'s log {path.name}"),
        traces=(),
        end_ns=max((trace.t_end_ns or 0 for trace in log.traces), default=0),
        client=Missing(missing=f"{log.tool} ran it"),
        notes=(f"read from {log.tool}'s log; its own words for these figures are in docs/metrics.md",),
    )
    return LoadRun(run, lambda: iter(log.traces), columns)


def _killed_run(folder: Path) -> LoadRun:
    """What a killed run had written: answers that had ended, up to a second before its end."""
    try:
        begun = msgspec.json.decode((folder / BEGUN).read_bytes(), type=Run)
    except (OSError, msgspec.DecodeError) as error:
        raise RequestError(f"the run in {folder} is damaged: {error}", hint="its evidence cannot be used") from None
    whole = folder / _LOG
    logs = (whole,) if whole.is_file() else tuple(sorted(folder.glob(f"{_LOG}.[0-9]*")))
    read = _reader(logs)
    columns = Columns(read())
    note = f"the run did not end by itself: {len(columns)} requests had ended and are kept, those under way are not"
    run = msgspec.structs.replace(
        begun,
        client=Missing(missing="the run was killed before the client could be judged"),
        notes=(*begun.notes, note),
    )
    return LoadRun(run, read, columns)
