"""powerband load: send a workload to a server and measure what came back."""

import argparse
import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import msgspec

from powerband.cli import load_text as text
from powerband.cli.load_runs import LoadRun, Recorder, promise_of, stored_run
from powerband.cli.options import add_home, add_output, add_traffic, print_json, print_text, terminal
from powerband.load.capacity import CapacitySearch
from powerband.load.steady import side_by_side
from powerband.load.stop_rules import Stop
from powerband.load.target import Endpoint, Target
from powerband.load.tokens import first_model
from powerband.load.traffic import at_rate, build_workload
from powerband.records.errors import EngineError, MachineError, RequestError
from powerband.records.slo import Slo, parse_slo
from powerband.records.units import ns_to_s
from powerband.records.workload import Workload

_DEFAULT_BODY = '{"ignore_eos": true}'
_ONE_PROCESS_PER_S = 1500.0  # requests/s that one client process sends with room to spare
_LEAST_PROBE = 100  # requests
_LIMITED_PROBES = 3  # probes that the client spoilt, before the search gives up
_QUIET = "try more --workers, or a machine that nobody else uses"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", nargs="?", help="the server, such as http://localhost:8000")
    parser.add_argument("--model", help="name to put into requests (default: the first that /v1/models lists)")
    parser.add_argument("--endpoint", choices=get_args(Endpoint), default="completions")
    parser.add_argument("--api-key", help="sent as a bearer token; not written down")
    parser.add_argument(
        "--extra-body", default=_DEFAULT_BODY, metavar="JSON", help=f"fields added to every request ({_DEFAULT_BODY})"
    )
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="tokenizer.json or its folder, for prompts of an exact length (default: "
        "the server's /tokenize, else words calibrated by its usage)",
    )  # fmt: skip
    parser.add_argument("--keep-alive", action="store_true", help="reuse connections (default: a new one a request)")
    parser.add_argument("--insecure", action="store_true", help="do not check the server's TLS certificate")
    parser.add_argument("--timeout", type=float, metavar="S", help="give up on a request after S seconds")
    parser.add_argument(
        "--workers", default="auto", metavar="N", help="client processes (default auto: by rate, cores)"
    )
    ends = parser.add_argument_group("when to end, and what to count")
    ends.add_argument("--max-seconds", type=float, default=600.0, metavar="S", help="end the run then (default 600)")
    ends.add_argument("--max-errors", type=int, metavar="N", help="end when N requests have failed")
    ends.add_argument(
        "--precision", type=float, metavar="X", help="end when mean TTFT and TPOT are within X (0.05: 5 %%)"
    )
    ends.add_argument("--stop-when-saturated", action="store_true", help="end when the server falls behind for good")
    ends.add_argument(
        "--warmup", type=float, default=0.0, metavar="S", help="leave out requests due in the first S seconds"
    )
    other = parser.add_argument_group("instead of one run")
    other.add_argument("--find", choices=["max_goodput_rate"], help="the highest rate that keeps the --slo")
    other.add_argument("--probe-seconds", type=float, default=30.0, metavar="S", help="of arrivals per rate tried (30)")
    other.add_argument("--compare", nargs=2, metavar="RUN", help="two runs side by side (as --show reads them)")
    other.add_argument(
        "--show",
        metavar="RUN",
        help="a stored run, what is left of one that was killed, or the log of vLLM bench, guidellm or AIPerf",
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the run as a page (.html), also of --show")
    add_traffic(parser)
    add_home(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    slo = parse_slo(args.slo) if args.slo else None
    _check(args)
    if args.compare:
        return _compare(args)
    if args.show:
        stored = stored_run(args.home, args.show)
        return _print(args, stored, slo or promise_of(stored.run), None)
    if args.url is None:
        raise RequestError("no URL is given", hint="powerband load http://HOST:PORT --traffic ...")
    if args.find:
        return _find(args, slo)
    workload = _workload(args, args.requests, args.scale_rate, args.seed)
    _check_warmup(args, workload)
    workers = _workers(args.workers, workload)
    with Recorder(args.home, target := _target(args), slo) as recorder:
        measured, loaded = recorder.measure(
            workload, deadline_s=args.max_seconds, workers=workers, stop=_stop(args), progress=_progress(args)
        )
    code = _print(args, measured, slo, loaded.stopped_because)
    if loaded.stopped_because == "interrupted":
        return 128 + signal.SIGINT
    if not loaded.columns.completed:
        first = loaded.columns.first_error or "no request ended in time"
        raise EngineError(f"no request to {target.url} was answered: {first}", hint=text.failure_hint(first))
    return code


def _print(args: argparse.Namespace, measured: LoadRun, slo: Slo | None, stopped: str | None) -> int:
    if not args.quiet:
        text.end_progress()
    counted = measured.without_warmup(args.warmup)
    metrics = counted.metrics(slo)
    if args.page:
        _write_page(args.page, counted, slo)
    if args.json:
        print_json(text.document(counted, metrics, slo, stopped))
    else:
        print_text(text.result(counted, metrics, slo, **terminal()))
    return 0


def _write_page(path: Path, load: LoadRun, slo: Slo | None) -> None:
    from powerband.report.load_document import load_document
    from powerband.report.page import render_document

    page = render_document(load_document(load.run, load.columns, slo, text.notes(load)))
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise MachineError(
            f"cannot write {path}: {error.strerror}", hint="the run is kept: --show RUN --page FILE"
        ) from error


def _compare(args: argparse.Namespace) -> int:
    before, after = (stored_run(args.home, name).without_warmup(args.warmup) for name in args.compare)
    rows = side_by_side(before.columns, after.columns, (before.run.end_ns, after.run.end_ns))
    if args.json:
        print_json({"before": before.run.run_id, "after": after.run.run_id, "metrics": rows})
    else:
        print_text(text.comparison(before.run.run_id, after.run.run_id, rows))
    return 0


def _find(args: argparse.Namespace, slo: Slo | None) -> int:
    """Probe rates until the highest that keeps the promise is bracketed; exit 1 where there is none, 130 on Ctrl-C."""
    if slo is None:
        raise RequestError("--find max_goodput_rate needs a promise to keep", hint="such as --slo ttft=500ms,tpot=50ms")
    first = _workload(args, args.requests, args.scale_rate, args.seed).request_rate_per_s
    if first is None:
        raise RequestError("--find needs traffic with a rate", hint="give a trace or arrivals=poisson(4/s)")
    search, limited, interrupted = CapacitySearch(first, slo.attainment), 0, False
    stop = msgspec.structs.replace(_stop(args), when_saturated=True)  # a hopeless rate ends when that is sure
    with Recorder(args.home, _target(args), slo) as recorder:
        while (rate := search.ask()) is not None:
            count = max(_LEAST_PROBE, math.ceil(rate * args.probe_seconds))
            seed = args.seed + len(search.result().probes)
            workload = at_rate(_workload(args, count, None, seed), rate)
            _, loaded = recorder.measure(
                workload,
                deadline_s=args.max_seconds,
                workers=_workers(args.workers, workload),
                stop=stop,
                progress=None,
            )
            if interrupted := loaded.stopped_because == "interrupted":
                break
            if loaded.client.verdict == "limited":
                limited += 1
                if limited > _LIMITED_PROBES:
                    raise EngineError(f"the client is the limit at {rate:.3g}/s: {loaded.client.reason}", hint=_QUIET)
                continue  # what such a probe says is not used; the rate is asked for again
            sent = len(loaded.columns)
            missed = len(workload.requests) - sent if loaded.stopped_because == "saturated" else 0
            probe = search.tell(rate, loaded.columns.good(slo), sent + missed)
            if not args.quiet:
                sys.stderr.write(text.probe_line(probe) + "\n")
    found = search.result()
    if args.json:
        print_json({"max_goodput_rate": found, "slo": slo, "basis": "measured"})
    else:
        print_text(text.capacity(found, slo))
    if interrupted:
        return 128 + signal.SIGINT
    return 0 if found.rate_per_s is not None else 1


def _workload(args: argparse.Namespace, requests: int | None, scale_rate: float | None, seed: int) -> Workload:
    return build_workload(
        args.traffic,
        requests=requests,
        scale_lengths=args.scale_lengths,
        scale_outputs=args.scale_outputs,
        scale_rate=scale_rate,
        seed=seed,
    )


def _workers(asked: str, workload: Workload) -> int:
    """One process as long as one will do: more would take cores from a server on the same machine."""
    if asked != "auto":
        if not asked.isdecimal() or not 1 <= int(asked) <= 256:
            raise RequestError(
                f"cannot read --workers {asked!r}", hint="write auto, or a number of processes from 1 to 256"
            )
        return int(asked)
    wanted = math.ceil((workload.request_rate_per_s or 0.0) / _ONE_PROCESS_PER_S)
    return max(1, min(wanted, (os.cpu_count() or 2) - 1))


def _stop(args: argparse.Namespace) -> Stop:
    return Stop(args.max_errors, args.precision, args.stop_when_saturated)


def _progress(args: argparse.Namespace) -> Any:
    return None if args.quiet else text.show_progress


def _target(args: argparse.Namespace) -> Target:
    try:
        extra = msgspec.json.decode(args.extra_body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise RequestError(f"--extra-body is not a JSON object: {error}", hint=f"such as {_DEFAULT_BODY}") from None
    target = Target(
        args.url,
        args.model or "",
        args.endpoint,
        args.api_key,
        extra,
        keep_alive=args.keep_alive,
        timeout_s=args.timeout,
        verify_tls=not args.insecure,
        tokenizer=args.tokenizer,
    )
    target.address()  # a wrong one leaves no trace in the journal
    if target.model or target.endpoint in ("tgi", "llamacpp"):
        return target
    return replace(target, model=first_model(target))


def _check(args: argparse.Namespace) -> None:
    for option in ("max_seconds", "timeout", "max_errors", "precision", "probe_seconds"):
        value = getattr(args, option)
        if value is not None and not (math.isfinite(value) and value > 0):
            name = "--" + option.replace("_", "-")
            raise RequestError(f"{name} {value:g} must be above 0", hint=f"write {name} with a number above 0")
    if not (math.isfinite(args.warmup) and args.warmup >= 0):
        raise RequestError(f"--warmup {args.warmup:g} must be 0 or more", hint="seconds from the first request")


def _check_warmup(args: argparse.Namespace, workload: Workload) -> None:
    """Before anything is sent: a warm-up that is sure to leave no request."""
    last_s = args.max_seconds
    if workload.concurrency is None and workload.requests:
        offsets = [request.offset_ns for request in workload.requests]
        last_s = min(last_s, ns_to_s(max(offsets) - min(offsets)))
    if args.warmup > last_s:
        raise RequestError(
            f"--warmup {args.warmup:g} leaves no request to count: the last is due at {last_s:.3g} s at the latest",
            hint="a shorter --warmup, or more --requests (and --max-seconds)",
        )
