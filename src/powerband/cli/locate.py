"""powerband locate: where the time goes in a running server, a finished run or a profiler trace."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from powerband.cli.command_line import command_line
from powerband.cli.options import add_home, add_output, add_traffic, print_json, print_text, read_workload, terminal
from powerband.locate.contention import assess_contention
from powerband.locate.diagnose import diagnose
from powerband.probes.http import base_url
from powerband.probes.provenance import read_provenance
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError, in_words
from powerband.records.finding import Diagnosis
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.run import Run
from powerband.records.sample import EngineSample
from powerband.records.slo import parse_slo
from powerband.records.units import format_duration, parse_duration
from powerband.records.value import Missing, known
from powerband.records.workload import Workload
from powerband.stores.run_dir import find_run, is_run, new_run_id, read_run

_DEFAULT_PROBE = "in=256,out=32,concurrency=1"  # one request at a time: a server in use hardly feels it
_BINS = 240  # of a page's timeline: some three pixels each
_Strip = dict[str, list[float]]  # parts of the window, bin by bin
_ADDRESS = re.compile(r"(https?://\S+|[\w.-]+:\d{1,5}(/\S*)?)", re.IGNORECASE)
_HINT = (
    "give a server (http://host:port), a run id of the journal, a run's folder, or a trace (.json, .json.gz, .sqlite)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="+",
        help="http://host:port, a run id, a run's folder, or a trace file; several traces are the ranks of one job",
    )
    parser.add_argument("--for", dest="watch", metavar="TIME", help="how long to watch (default 30s; 8s with --prove)")
    parser.add_argument(
        "--pid",
        type=int,
        help="process id of the engine on this host: adds its CPU use, and with py-spy its interpreter lock",
    )
    parser.add_argument("--probe", action="store_true", help="also send light traffic and time it (default: read-only)")
    parser.add_argument(
        "--prove",
        action="store_true",
        help="test what is found: SOURCE is a server (tests that need no restart), or a model to start with --engine",
    )
    parser.add_argument("--engine", help="with --prove: the engine to start (default llamacpp)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="with --prove: an engine knob")
    parser.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="of a trace: write it with its gaps named (.json.gz)"
    )
    parser.add_argument(
        "--engine-traces",
        type=Path,
        metavar="FOLDER",
        help="of a server: have it record itself for --for (default 2s); FOLDER is where it writes its traces",
    )
    parser.add_argument("--folded", type=Path, metavar="FILE", help="of a trace: write folded stacks for flame graphs")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the diagnosis as a page (.html)")
    parser.add_argument("--api-key", default="", help="sent as a bearer token")
    parser.add_argument("--model", help="a folder with config.json or a .gguf file: compares steps with the roofline")
    parser.add_argument("--device", help="catalogue name or auto: the device of that roofline")
    add_traffic(parser)
    add_home(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    found, strip = _diagnose(args)
    if args.page:
        from powerband.report.diagnosis_page import diagnosis_document
        from powerband.report.page import render_document

        page = render_document(diagnosis_document(found, strip=strip, command=command_line()))
        _write(args.page, lambda path: path.write_text(page, encoding="utf-8"))
    if args.json:
        print_json(found)
    else:
        from powerband.report.diagnosis import render_diagnosis

        print_text(render_diagnosis(found, **terminal()))
    return 0


def _diagnose(args: argparse.Namespace) -> tuple[Diagnosis, _Strip | None]:
    slo = parse_slo(args.slo) if args.slo else None
    device, model = _device(args), _model(args.model)  # before anything is watched: a wrong name costs no wait
    if len(args.source) > 1:
        if args.prove or args.engine or args.set:
            raise RequestError(f"--prove tests one source, not {len(args.source)}", hint=_HINT)
        return _trace(args, _traces(args.source), model, device)
    args.source = source = args.source[0]
    path = Path(source)
    if args.prove:
        from powerband.cli.locate_prove import prove_source

        address = bool(_ADDRESS.fullmatch(source)) and not path.exists()
        return prove_source(args, url=address, model=model, device=device, slo=slo), None
    locks: tuple[str, ...] = ()
    if args.engine or args.set:
        raise RequestError("--engine and --set start an engine, which locate does only with --prove", hint=_HINT)
    if _ADDRESS.fullmatch(source) and not path.exists():
        if args.engine_traces:
            return _trace(args, [_recorded(args)], model, device)
        seen, locks = _watch(args)
    elif is_run(path):
        seen = read_run(path)
    elif path.is_file():
        return (_stated(path), None) if path.suffix == ".toml" else _trace(args, [path], model, device)
    else:
        seen = read_run(find_run(args.home, source, hint=_HINT))
    if model is None and device is not None and Path(seen.config.model).exists():
        model = _model(seen.config.model)
    import msgspec

    found = diagnose(seen, model=model, device=device, slo=slo)
    return msgspec.structs.replace(found, notes=(*found.notes, *locks)), None


def _stated(path: Path) -> Diagnosis:
    """Facts of an incident, as somebody states them in a TOML file."""
    import msgspec

    from powerband.locate.stated import diagnose_facts
    from powerband.records.facts import Facts

    try:
        return diagnose_facts(msgspec.toml.decode(path.read_bytes(), type=Facts))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fields = ", ".join(Facts.__struct_fields__)
        raise RequestError(
            f"cannot read stated facts in {path.name}: {in_words(error)}", hint=f"fields: {fields}"
        ) from None


def _recorded(args: argparse.Namespace) -> Path:
    """The largest of the traces that the engine wrote of itself: that of a worker, where its server writes one too."""
    from powerband.probes.engine_profiler import record_engine

    seconds = parse_duration(args.watch or "2s")
    traces = record_engine(base_url(args.source), args.engine_traces, seconds, api_key=args.api_key)
    largest = max(traces, key=lambda path: path.stat().st_size)
    if not args.quiet:
        sys.stderr.write(f"recorded {', '.join(path.name for path in traces)}; reading {largest}\n")
    return largest


def _traces(sources: Sequence[str]) -> list[Path]:
    paths = [Path(source) for source in sources]
    for path in paths:
        if not path.is_file() or path.suffix == ".toml":
            raise RequestError(f"{path} is no trace file", hint="several sources must all be traces, one of each rank")
    real = [path.resolve() for path in paths]
    for place, path in enumerate(real):
        if path in real[:place]:
            raise RequestError(f"{paths[place]} is named twice", hint="name one trace of each rank")
    return paths


def _trace(
    args: argparse.Namespace, paths: Sequence[Path], model: ModelSpec | None, device: DeviceSpec | None
) -> tuple[Diagnosis, _Strip | None]:
    """Profiler traces, one or those of several ranks; files and page are of the rank that the others wait for."""
    from powerband.locate.ranks import diagnose_ranks
    from powerband.probes.trace_file import read_trace

    timelines = [read_trace(path) for path in paths]
    last, found = diagnose_ranks(timelines, model=model, device=device)
    timeline = timelines[last]
    strip: _Strip | None = None
    if args.perfetto or args.folded or args.page:
        from powerband.locate.gaps import find_gaps
        from powerband.locate.strip import bin_window
        from powerband.report.annotated import write_annotated, write_folded

        gaps = find_gaps(timeline)
        if args.perfetto:
            _write(args.perfetto, lambda to: write_annotated(to, timeline, gaps.start_ns, gaps.end_ns, gaps.parts))
        if args.folded:
            _write(args.folded, lambda to: write_folded(to, timeline, gaps.parts))
        if args.page:
            strip = {name: shares.tolist() for name, shares in bin_window(timeline, gaps, _BINS).items()}
    return found, strip


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write(path)
    except OSError as error:
        raise RequestError(f"cannot write {error.filename}: {error.strerror}", hint="name another file") from None


def _model(name: str | None) -> ModelSpec | None:
    if not name:
        return None
    from powerband.probes.checkpoint import read_model

    return read_model(name)


def _device(args: argparse.Namespace) -> DeviceSpec | None:
    if not args.device:
        return None
    from powerband.probes.device import read_device

    return read_device(args.device)


def _watch(args: argparse.Namespace) -> tuple[Run, tuple[str, ...]]:
    """The run, and with --pid a line on the interpreter lock of each Python process of the engine."""
    seconds = parse_duration(args.watch or "30s")
    if args.pid is not None and not _lives(args.pid):
        raise RequestError(f"no process {args.pid} on this host", hint="--pid is the engine's process id here")
    url = base_url(args.source)
    watch = _probe if args.probe else _look
    if args.pid is None:
        return watch(args, url, seconds), ()
    from powerband.probes.gil import GilWatch

    with GilWatch(args.pid) as locks:
        run = watch(args, url, seconds)
    return run, locks.notes()


def _lives(pid: int) -> bool:
    import psutil

    return pid > 0 and psutil.pid_exists(pid)


def _look(args: argparse.Namespace, url: str, seconds: float) -> Run:
    """Read-only: the server's metrics, and this host where it is the server's."""
    from powerband.probes.host import is_here, serving_pid
    from powerband.probes.watch import watch_server

    here = args.pid is not None or is_here(urlsplit(url).hostname or "")
    seen = watch_server(
        url,
        seconds,
        engine_pid=args.pid or serving_pid(url),
        watch_host=here,
        api_key=args.api_key,
        progress=None if args.quiet else _show,
    )
    return Run(
        run_id=new_run_id("locate"),
        basis="measured",
        config=EngineConfig(engine="openai", model=""),
        effective=Missing(missing="the server was watched, not asked"),
        workload=Workload(requests=(), source="none: the server was only watched"),
        traces=(),
        end_ns=seen.engine[-1].t_ns,
        engine_samples=tuple(seen.engine),
        host_samples=tuple(seen.host),
        device_samples=tuple(seen.devices),
        contention=assess_contention(seen.host, None)
        if seen.host
        else Missing(missing="the server is on another host"),
        provenance=read_provenance(command_line()),
    )


def _probe(args: argparse.Namespace, url: str, seconds: float) -> Run:
    """Watch while light traffic of our own is sent and timed."""
    from powerband.engines.running import Running
    from powerband.load.target import Target
    from powerband.load.tokens import first_model
    from powerband.measure import observe
    from powerband.probes.host import serving_pid

    workload = read_workload(args, default=_DEFAULT_PROBE)
    extra = {"ignore_eos": True}
    model = first_model(Target(url, api_key=args.api_key or None))
    running = Running(
        url,
        model_id=model,
        version="unknown",
        api_key=args.api_key,
        read_effective=lambda: Missing(missing="the server was not asked for its settings"),
    )
    running.pid = args.pid or serving_pid(url)
    return observe(
        running,
        Target(url, model, api_key=args.api_key or None, extra_body=extra),
        EngineConfig(engine="openai", model=model),
        workload,
        run_id=new_run_id("locate"),
        command=command_line(),
        cut_s=seconds,
    )


def _show(left_s: float, sample: EngineSample) -> None:
    """One line on a terminal, rewritten; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        return
    gauges = [("running", known(sample.running)), ("waiting", known(sample.waiting))]
    shown = ", ".join(f"{value:.0f} {name}" for name, value in gauges if value is not None) or "no gauges"
    sys.stderr.write(f"\r\x1b[2Kwatching: {shown}, {format_duration(left_s)} left")
    if left_s <= 0:
        sys.stderr.write("\r\x1b[2K")
    sys.stderr.flush()
