"""What the load command shows: its JSON documents, its tables, its progress."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from powerband.cli.load_runs import LoadRun
from powerband.load.capacity import Capacity, Probe
from powerband.load.steady import SideBySide, drift
from powerband.load.target import Progress
from powerband.records.metrics import Metrics
from powerband.records.slo import Slo
from powerband.records.units import format_duration, percent
from powerband.report.text import render_metrics


def document(load: LoadRun, metrics: Metrics, slo: Slo | None, stopped_because: str | None) -> dict[str, Any]:
    """The contract of ``load --json``."""
    run = load.run
    return {
        "run_id": run.run_id,
        "basis": run.basis,
        "metrics": metrics,
        "client": run.client,
        "slo": slo,
        "traffic": {
            "source": run.workload.source,
            "scaling": run.workload.scaling,
            "concurrency": run.workload.concurrency,
            "request_rate_per_s": run.workload.request_rate_per_s,
        },
        "stopped_because": stopped_because,
        "errors": dict(load.columns.errors.most_common()),
        "notes": notes(load),
    }


def notes(load: LoadRun) -> list[str]:
    found = drift(load.columns)
    return [*load.run.notes, *([found] if found else [])]


def result(load: LoadRun, metrics: Metrics, slo: Slo | None, *, width: int, color: bool) -> str:
    run = load.run
    traffic = run.workload.source + (f" ({run.workload.scaling})" if run.workload.scaling else "")
    shown = render_metrics(metrics, slo, run.client, basis=run.basis, width=width, color=color).rstrip()
    errors = ", ".join(f"{count} {name}" for name, count in load.columns.errors.most_common())
    lines = [f"run {run.run_id}: {traffic}", shown]
    lines += [f"errors: {errors}"] if errors else []
    return "\n".join([*lines, *(f"note: {note}" for note in notes(load))]) + "\n"


def failure_hint(error: str) -> str:
    """What to try where no request was answered, by the category of the first error."""
    kind = error.partition(":")[0]
    if kind in ("http_401", "http_403"):
        return "the server wants a key: give it with --api-key, or another one"
    if kind in ("http_429", "http_503"):
        return "the server is loading its model or has too much to do: wait, or send less (--scale-rate, concurrency=)"
    if kind == "timeout" or error.startswith("no request ended"):
        return "the server was too slow for the time given: a longer --timeout or --max-seconds, or less traffic"
    if kind == "connect":
        return "is the server up, and does it listen there?"
    return "is it the right URL, --endpoint and --model?"


def show_progress(now: Progress) -> None:
    """One line a second on stderr; rewritten in place on a terminal."""
    parts = [
        f"{now.completed + now.errors}/{now.planned} done",
        f"{now.in_flight} in flight",
        f"{now.errors} errors",
        f"TTFT {'–' if now.ttft_s is None else format_duration(now.ttft_s)}",
        f"TPOT {'–' if now.tpot_s is None else format_duration(now.tpot_s)}",
        f"{now.sent / max(now.elapsed_s, 1e-9):.3g} requests/s",
        f"{now.output_tokens / max(now.elapsed_s, 1e-9):.1f} tok/s",
    ]
    if now.left_s is not None:
        parts.append(f"about {format_duration(max(now.left_s, 0.0))} left")
    line = "  ".join(parts)
    with contextlib.suppress(OSError):  # the terminal may be gone: the run goes on
        sys.stderr.write(f"\r\x1b[2K{line[:150]}" if sys.stderr.isatty() else f"{line}\n")
        sys.stderr.flush()


def end_progress() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def probe_line(probe: Probe) -> str:
    low, high = probe.interval.low, probe.interval.high
    share = f"{percent(probe.attainment, 1)} of {probe.requests} good ({percent(low, 1)} to {percent(high, 1)})"
    return f"{probe.rate_per_s:>8.3g} requests/s   {share}   {probe.verdict}"


def capacity(found: Capacity, slo: Slo) -> str:
    lines = [probe_line(probe) for probe in found.probes]
    if found.rate_per_s is None or found.interval is None:
        return "\n".join([*lines, f"no highest rate found: {found.reason}"]) + "\n"
    bounds = f"{found.interval.low:.3g} holds, {found.interval.high:.3g} misses"
    answer = f"max_goodput_rate {found.rate_per_s:.3g} requests/s at attainment {percent(slo.attainment)} ({bounds})"
    return "\n".join([*lines, f"{answer}; {found.reason}"]) + "\n"


def comparison(before: str, after: str, rows: Sequence[SideBySide]) -> str:
    lines = [f"{before} -> {after}", f"{'':<22}{'before':>12}{'after':>12}{'ratio':>8}   90 % interval"]
    for row in rows:
        is_time = row.name in ("ttft_s", "tpot_s", "e2e_s")
        shown = [format_duration(value) if is_time else f"{value:.4g}" for value in (row.before, row.after)]
        bounds = f"{row.interval.low:.3f} to {row.interval.high:.3f}" if row.interval else "– (too few answers)"
        lines.append(f"{row.name:<22}{shown[0]:>12}{shown[1]:>12}{row.ratio:>8.3f}   {bounds}")
    if any(row.paired for row in rows):
        lines.append("Both sent the same requests at the same instants: intervals are of the differences between them.")
    lines.append(
        "Intervals are from within each run; how far equal runs differ is for: powerband verify, with repeats."
    )
    return "\n".join(lines) + "\n"
