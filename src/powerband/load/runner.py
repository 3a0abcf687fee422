"""Run a workload against a server: prepare the prompts, do it in one process or several, put the parts together."""

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from powerband.load.part import Job, PartResult
from powerband.load.process import do_part, request_payloads
from powerband.load.self_check import check_client
from powerband.load.stop_rules import Stop
from powerband.load.target import Loaded, Progress, StoppedBecause, Target
from powerband.load.tokens import find_tokens
from powerband.load.trace_log import join_logs, part_log, read_traces
from powerband.load.worker import Workers
from powerband.records.columns import Columns
from powerband.records.errors import RequestError
from powerband.records.workload import Workload

_LEAD_NS = 20_000_000  # from here to the schedule's zero: time to be ready
_FIRST_OF: tuple[StoppedBecause, ...] = (
    "too_many_errors", "saturated", "interrupted", "deadline", "precise_enough", "done",
)  # fmt: skip
_WORDS = {
    "deadline": "the deadline came",
    "interrupted": "stopped by hand",
    "too_many_errors": "stopped: too many errors",
    "saturated": "stopped: the server falls behind the offered rate",
    "precise_enough": "stopped: precise enough",
}


def run_load(
    target: Target,
    workload: Workload,
    *,
    t0_ns: int,
    deadline_s: float,
    progress: Callable[[Progress], None] | None = None,
    workers: int = 1,
    stop: Stop | None = None,
    trace_log: Path | None = None,
) -> Loaded:
    """Send the workload and record what came; trace times are ns after ``t0_ns`` (a time.monotonic_ns()).

    The schedule and ``deadline_s`` start when prompts are ready, shortly after the call. At the deadline answers under
    way and requests due but unsent become ``dropped``; requests that were not due yet leave no trace and a note.
    Ctrl-C does the same at once, with ``stopped_because="interrupted"``. ``workers`` processes share the requests.
    With ``trace_log`` traces go there as they end and are not kept: memory is then that of the workload. While the run
    goes on they are in files whose names ``part_log`` gives. Raises RequestError for an empty workload or a bad URL,
    EngineError where nothing answers at it.
    """
    if not workload.requests:
        raise RequestError("the workload holds no request", hint="check --traffic and --requests")
    source = find_tokens(target, workload.seed)
    salt = secrets.randbits(40)
    payload = request_payloads(target, workload, source, salt)
    log = None if trace_log is None else str(trace_log)
    job = Job(target, workload, salt, t0_ns, deadline_s, 0, workers, stop or Stop(), log)
    if workers > 1:
        parts = Workers(job).run(progress)
    else:
        parts = [do_part(job, payload, progress, lambda: time.monotonic_ns() + _LEAD_NS)]
    if trace_log is not None:
        join_logs([part_log(trace_log, share) for share in range(workers)], trace_log)
    return _together(workload, parts, source.note, trace_log)


def _together(workload: Workload, parts: Sequence[PartResult], note: str, trace_log: Path | None) -> Loaded:
    """One run from its parts; the client's CPU share is that of its busiest process."""
    traces = tuple(sorted((trace for part in parts for trace in part.traces), key=lambda trace: trace.index))
    columns = Columns(traces if trace_log is None else read_traces(trace_log))
    lags_s = [lag for part in parts for lag in part.lags_s]
    cpu_ratio = max(part.cpu_ratio for part in parts)
    stopped = next(reason for reason in _FIRST_OF if any(part.stopped == reason for part in parts))
    check = check_client(columns, lags_s, cpu_ratio, open_loop=workload.concurrency is None)
    notes = (note, *([f"{len(parts)} client processes"] if len(parts) > 1 else []), *_notes(workload, parts, stopped))
    records = sum(part.records for part in parts)
    lost = () if records == len(columns) else (f"{records - len(columns)} of {records} records are not in the log",)
    return Loaded(traces, max(part.end_ns for part in parts), check, columns, (*notes, *lost), stopped)


def _notes(workload: Workload, parts: Sequence[PartResult], stopped: str) -> list[str]:
    planned, sent = len(workload.requests), sum(part.records for part in parts)
    how: dict[str, int] = {}
    for part in parts:
        for name, count in part.how.items():
            how[name] = how.get(name, 0) + count
    notes = []
    if stopped != "done":
        left = "not sent" if workload.concurrency is not None else "not due yet"
        why = next((f" ({part.why})" for part in parts if part.why), "")
        notes.append(f"{_WORDS[stopped]}{why}: {planned - sent} of {planned} requests were {left} and are not counted")
    if how.get("unchecked"):
        notes.append(f"{how['unchecked']} answers came without a token count: one token a chunk assumed")
    if how.get("spread"):
        split = "the total is the server's, its split over chunks is by length of text"
        notes.append(f"{how['spread']} answers had chunks of several tokens; {split}")
    if how.get("fewer"):
        notes.append(f"{how['fewer']} answers had more chunks than tokens by the server's count, which is used")
    if off := sum(part.lengths_off for part in parts):
        notes.append(f"{off} answers were not as long as asked (does the server know ignore_eos?)")
    if off := sum(part.prompts_off for part in parts):
        most = max(part.most_off_tokens for part in parts)
        notes.append(f"{off} prompts were not as long as asked by the server's count, by up to {most} tokens")
    return notes
