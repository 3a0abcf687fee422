"""powerband load: send a workload to a server and measure what came back."""

import argparse
import platform
import secrets
import shlex
import signal
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec

from powerband import __version__
from powerband.cli.options import add_home, add_output, add_traffic, print_json, print_text
from powerband.load.runner import run_load
from powerband.load.target import Endpoint, Loaded, Progress, Target
from powerband.load.tokens import first_model
from powerband.load.traffic import build_workload
from powerband.records.config import EngineConfig
from powerband.records.errors import EngineError, RequestError
from powerband.records.metrics import Distribution, Metrics
from powerband.records.run import Provenance, Run, Trial
from powerband.records.slo import Slo, parse_slo
from powerband.records.units import format_duration
from powerband.records.value import Missing
from powerband.records.workload import Workload
from powerband.stores.sqlite import Journal

_DEFAULT_BODY = '{"ignore_eos": true}'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the server, such as http://localhost:8000")
    parser.add_argument("--model", help="name to put into requests (default: the first that /v1/models lists)")
    parser.add_argument("--endpoint", choices=get_args(Endpoint), default="completions")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument(
        "--extra-body", default=_DEFAULT_BODY, metavar="JSON", help=f"fields added to every request ({_DEFAULT_BODY})"
    )
    parser.add_argument("--keep-alive", action="store_true", help="reuse connections (default: a new one a request)")
    parser.add_argument("--insecure", action="store_true", help="do not check the server's TLS certificate")
    parser.add_argument("--timeout", type=float, metavar="S", help="give up on a request after S seconds")
    parser.add_argument("--max-seconds", type=float, default=600.0, metavar="S", help="end the run then (default 600)")
    add_traffic(parser)
    add_home(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    slo = parse_slo(args.slo) if args.slo else None
    if not args.max_seconds > 0:
        raise RequestError(f"--max-seconds {args.max_seconds:g} must be above 0", hint="such as --max-seconds 60")
    workload = build_workload(
        args.traffic,
        requests=args.requests,
        scale_lengths=args.scale_lengths,
        scale_outputs=args.scale_outputs,
        scale_rate=args.scale_rate,
        seed=args.seed,
    )
    target = _target(args)
    journal = Journal(args.home)
    session = journal.begin("load", shlex.join(sys.argv[1:]))
    started_at = datetime.now(UTC).isoformat()
    loaded = run_load(
        target,
        workload,
        t0_ns=time.monotonic_ns(),
        deadline_s=args.max_seconds,
        progress=None if args.quiet else show_progress,
    )
    result = _as_run(target, workload, loaded, started_at)
    metrics = result.metrics(slo)
    trial = Trial(
        n=1, purpose="load", config=result.config, status=_status(loaded), measured=metrics, run_id=result.run_id
    )
    journal.add_trial(session.session_id, "load", trial, result)
    interrupted = loaded.stopped_because == "interrupted"
    journal.end(session.session_id, "stopped" if interrupted else "done")
    if args.json:
        print_json(document(result, metrics, loaded, slo))
    else:
        print_text(table(result, metrics, loaded, slo))
    if interrupted:
        return 128 + signal.SIGINT
    if metrics.completed == 0:
        first = next((trace.error for trace in loaded.traces if trace.error), "no request ended in time")
        raise EngineError(f"no request to {target.url} was answered: {first}", hint="is it the right URL and endpoint?")
    return 0


def _target(args: argparse.Namespace) -> Target:
    try:
        extra = msgspec.json.decode(args.extra_body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise RequestError(f"--extra-body is not a JSON object: {error}", hint=f"such as {_DEFAULT_BODY}") from None
    if args.timeout is not None and not args.timeout > 0:
        raise RequestError(f"--timeout {args.timeout:g} must be above 0", hint="such as --timeout 30")
    target = Target(
        args.url,
        args.model or "",
        args.endpoint,
        args.api_key,
        extra,
        keep_alive=args.keep_alive,
        timeout_s=args.timeout,
        verify_tls=not args.insecure,
    )
    if target.model or target.endpoint in ("tgi", "llamacpp"):
        return target
    return replace(target, model=first_model(target))


def _status(loaded: Loaded) -> Any:
    return "client_limited" if loaded.client.verdict == "limited" else "done"


def _as_run(target: Target, workload: Workload, loaded: Loaded, started_at: str) -> Run:
    return Run(
        run_id=f"load-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        basis="measured",
        config=EngineConfig(engine="openai", model=target.model),
        effective=Missing(missing="the server is not ours; it was not asked for its settings"),
        workload=workload,
        traces=loaded.traces,
        end_ns=loaded.end_ns,
        client=loaded.client,
        provenance=Provenance(
            powerband=__version__,
            command=shlex.join(["powerband", *sys.argv[1:]]),
            started_at=started_at,
            host=platform.node(),
            engine_version="unknown",
            python=platform.python_version(),
        ),
        notes=loaded.notes,
    )


def document(result: Run, metrics: Metrics, loaded: Loaded, slo: Slo | None) -> dict[str, Any]:
    """The contract of ``load --json``."""
    return {
        "run_id": result.run_id,
        "basis": result.basis,
        "metrics": metrics,
        "client": loaded.client,
        "slo": slo,
        "traffic": {
            "source": result.workload.source,
            "scaling": result.workload.scaling,
            "concurrency": result.workload.concurrency,
            "request_rate_per_s": result.workload.request_rate_per_s,
        },
        "stopped_because": loaded.stopped_because,
        "errors": error_counts(loaded),
        "notes": loaded.notes,
    }


def error_counts(loaded: Loaded) -> dict[str, int]:
    """How many requests ended in each category of error."""
    counts: dict[str, int] = {}
    for trace in loaded.traces:
        if trace.error is not None:
            category = trace.error.partition(":")[0]
            counts[category] = counts.get(category, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def show_progress(now: Progress) -> None:
    """One line a second on stderr; rewritten in place on a terminal."""
    parts = [
        f"{now.completed + now.errors}/{now.planned} done",
        f"{now.in_flight} in flight",
        f"{now.errors} errors",
        f"TTFT {'–' if now.ttft_s is None else format_duration(now.ttft_s)}",
        f"TPOT {'–' if now.tpot_s is None else format_duration(now.tpot_s)}",
        f"{now.output_tokens / max(now.elapsed_s, 1e-9):.1f} tok/s",
    ]
    if now.left_s is not None:
        parts.append(f"about {format_duration(max(now.left_s, 0.0))} left")
    line = "  ".join(parts)
    sys.stderr.write(f"\r\x1b[2K{line}" if sys.stderr.isatty() else f"{line}\n")
    sys.stderr.flush()


def table(result: Run, metrics: Metrics, loaded: Loaded, slo: Slo | None) -> str:
    traffic = result.workload.source + (f" ({result.workload.scaling})" if result.workload.scaling else "")
    ends = f"{metrics.completed} completed, {metrics.errors} errors, {metrics.dropped} dropped"
    rows = [
        f"run {result.run_id}: {traffic}",
        f"requests   {ends} in {format_duration(metrics.duration_s)}",
        f"rates      {metrics.request_rate_per_s:.3g} requests/s, {metrics.output_tokens_per_s:.4g} output tokens/s, "
        f"{metrics.total_tokens_per_s:.4g} total tokens/s",
        f"{'':<11}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}",
    ]
    latencies = (("TTFT", metrics.ttft_s), ("TPOT", metrics.tpot_s), ("ITL", metrics.itl_s), ("E2E", metrics.e2e_s))
    rows += [f"{name:<11}{_cells(values)}" for name, values in latencies]
    if slo is not None and metrics.attainment is not None:
        wanted = f"attainment {metrics.attainment:.1%} (wanted {slo.attainment:.0%})"
        rows.append(f"SLO        {wanted}, goodput {metrics.goodput_per_s:.3g} requests/s")
    rows.append(f"client     {loaded.client.verdict}: {loaded.client.reason}")
    errors = ", ".join(f"{count} {name}" for name, count in error_counts(loaded).items())
    if errors:
        rows.append(f"errors     {errors}")
    rows += [f"note       {note}" for note in loaded.notes]
    return "\n".join(rows)


def _cells(values: Distribution | Missing) -> str:
    if isinstance(values, Missing):
        return f"  – ({values.missing})"
    return "".join(f"{format_duration(v):>10}" for v in (values.mean, values.p50, values.p90, values.p99))
