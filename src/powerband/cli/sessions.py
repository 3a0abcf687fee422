"""What loop and tune share: their options, a session in the journal, resuming, and its end however it comes."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from powerband.case import Case, CaseRequest, prepare_all
from powerband.cli import options, verify_quality
from powerband.cli.command_line import command_line
from powerband.cli.progress import Narrator
from powerband.cli.session_lock import locked
from powerband.cli.stored import RESUMABLE, calibrating_runs, loop_session
from powerband.evaluate import Trials
from powerband.loop import Loop
from powerband.plan import Plan, load_plan, write_plan
from powerband.records.config import EngineConfig
from powerband.records.errors import PowerbandError, RequestError
from powerband.records.rounds import LoopReport
from powerband.records.run import Run
from powerband.records.units import parse_duration
from powerband.stores.base import Session
from powerband.stores.sqlite import Journal
from powerband.tune.plan import describe_traffic


def add_arguments(parser: argparse.ArgumentParser, *, budget: str, repeats: int) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a .gguf file, a folder, a hub id, or a server's URL")
    parser.add_argument("--model", dest="model_option", metavar="MODEL", help="the same, as an option")
    options.add_engine(parser, several=True)
    options.add_device(parser)
    options.add_traffic(parser, auto_rate=True)
    group = parser.add_argument_group("session")
    group.add_argument("--budget", default=budget, help=f"engine time to spend, such as 20m (default {budget})")
    group.add_argument("--window", help="seconds of arrivals in each trial (default: from the budget, 8s to 60s)")
    group.add_argument("--repeats", type=int, default=repeats, help=f"runs of each side in verify (default {repeats})")
    group.add_argument(
        "--calibrate",
        action="append",
        default=[],
        metavar="RUN",
        help="what is known of this machine before the search: a run, or a session such as of powerband calibrate",
    )
    group.add_argument(
        "--numerics", action="store_true",
        help="turn settings that alter the answers too; one that has not passed a quality gate is never recommended",
    )  # fmt: skip
    group.add_argument(
        "--resume", nargs="?", const="", metavar="SESSION", help="go on with a session (default: the last)"
    )
    verify_quality.add_task_arguments(parser)
    options.add_home(parser)
    options.add_output(parser)


def request_of(args: argparse.Namespace) -> CaseRequest:
    """The case that the options describe; a URL as MODEL means a server to attach to."""
    model = args.model or args.model_option
    if model is None:
        raise RequestError("no MODEL was given", hint="name a .gguf file, a model folder, a hub id, or a server's URL")
    attached = model.startswith(("http://", "https://"))
    named = args.engine or ("openai" if attached else "llamacpp")
    engine, *rivals = (word.strip() for word in named.split(","))
    settings = [*args.set, *([f"url={model}"] if attached and engine == "openai" else [])]
    local = not attached and Path(model).exists()
    return CaseRequest(
        model=str(Path(model).resolve()) if local else model,
        engine=engine,
        settings=tuple(settings),
        device=args.device,
        count=args.count,
        traffic=_absolute(args.traffic),
        requests=args.requests,
        scale_lengths=args.scale_lengths,
        scale_outputs=args.scale_outputs,
        scale_rate=args.scale_rate,
        window_s=None if args.window is None else parse_duration(args.window),
        slo=args.slo,
        budget_s=parse_duration(args.budget),
        repeats=args.repeats,
        seed=args.seed,
        calibrate=tuple(args.calibrate),
        numerics=args.numerics,
        ladder_from=getattr(args, "ladder_from", None),
        quantized=_absolute(getattr(args, "quantized", None)),
        goal=getattr(args, "objective", "speed"),
        rivals=tuple(map(_rival, rivals)),
    )


def _rival(text: str) -> str:
    """``ENGINE`` or ``ENGINE=MODEL``, a model's path in full so that the session can be resumed from elsewhere."""
    name, equals, model = text.partition("=")
    return f"{name}={Path(model).resolve() if Path(model).exists() else model}" if equals else name


def run_session(args: argparse.Namespace, command: str) -> tuple[LoopReport, Journal]:
    """Run or resume a session to its end; whatever ends it, its finished trials and its status are in the journal."""
    verify_quality.task_of(args)  # what is wrong in it is said at once, and where no gate is needed too
    request = None if args.resume is not None else request_of(args)
    cases = () if request is None else prepare_all(request)  # a wrong request leaves no trace in the journal
    journal = Journal(args.home)
    if request is None:
        session = loop_session(journal, args.resume or None)
        if session.command not in RESUMABLE:
            raise RequestError(f"session {session.session_id} is a {session.command}", hint="only loop and tune resume")
        cases = prepare_all(msgspec.json.decode(session.request, type=CaseRequest))
    else:
        session = journal.begin(command, msgspec.json.encode(request).decode())
    case, *others = cases
    narrator = Narrator(quiet=args.quiet, budget_s=case.request.budget_s, name_engine=bool(others))
    narrator.say(f"session {session.session_id} in {args.home}")
    with held(journal, session):
        trials = Trials(
            journal,
            session.session_id,
            case.engine,
            slo=case.slo,
            budget_s=case.request.budget_s,
            command=command_line(),
            watcher=narrator,
        )
        known = calibrating_runs(journal, case.request.calibrate, [one.naive for one in cases], case.device)
        rivals = [Loop(other, trials, known=of_engine(known, other)) for other in others]
        loop = Loop(case, trials, known=of_engine(known, case), rivals=rivals)
        # Another engine's answers are others': none is advised that has not passed.
        loop.gate = verify_quality.gate_of(args, narrator) if case.request.numerics or rivals else None
        report = loop.run()
        journal.put_document(session.session_id, "report", msgspec.json.encode(report))
        if loop.gate is not None:
            verify_quality.write_pages(args.home, loop.gate, narrator)
        if report.chosen is not None:
            plan = plan_of(report.chosen, loop.case)
            comment = f"chosen by powerband {command}, session {session.session_id}\n{report.start_command}"
            write_plan(plan_path(journal, report), plan, comment)
    return report, journal


def of_engine(runs: list[Run], case: Case) -> list[Run]:
    """The runs that say how fast this case's engine is, where several are in question."""
    return [run for run in runs if run.config.engine == case.engine.name]


def plan_of(chosen: EngineConfig, case: Case) -> Plan:
    """The chosen config with the promise it keeps and the traffic it was measured under."""
    return Plan(
        engine=chosen.engine,
        model=chosen.model,
        knobs=chosen.knobs,
        slo=case.request.slo or "",
        holds_for=describe_traffic(case.workload),
    )


def plan_path(journal: Journal, report: LoopReport) -> Path:
    return journal.home / "plans" / f"{report.session_id}.toml"


def plan_document(journal: Journal, report: LoopReport) -> dict[str, object]:
    path = plan_path(journal, report)
    known = report.chosen is not None and path.exists()
    return {"plan": str(path) if known else None, "holds_for": load_plan(path).holds_for if known else None}


def plan_words(journal: Journal, report: LoopReport) -> str:
    """Where the plan lies and what it holds for; empty where nothing was chosen."""
    path = plan_path(journal, report)
    if report.chosen is None or not path.exists():
        return ""
    return (
        f"plan: {path}\n  it holds for {load_plan(path).holds_for}\n"
        f"  other traffic: powerband simulate --config {path} --breaking --calibrate {report.session_id} --traffic ..."
    )


@contextmanager
def held(journal: Journal, session: Session) -> Iterator[None]:
    """Hold the session against a second process, and write down how it ended; a request that proved wrong before its
    first trial is taken out again, so that --resume still finds the session before it."""
    with locked(journal, session):
        journal.go_on(session.session_id)  # a resumed one runs again: killed now, it was neither stopped nor done
        try:
            yield
        except KeyboardInterrupt:
            journal.end(session.session_id, "stopped", "interrupted")
            raise
        except PowerbandError as error:
            journal.end(session.session_id, "failed", error.message)
            if isinstance(error, RequestError):
                journal.forget(session.session_id)
            raise
        journal.end(session.session_id, "done")


def _absolute(traffic: str | None) -> str | None:
    """A trace file is remembered by its full path, so that a session can be resumed from another folder."""
    return str(Path(traffic).resolve()) if traffic and "=" not in traffic and Path(traffic).exists() else traffic
