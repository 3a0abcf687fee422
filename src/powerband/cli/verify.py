"""powerband verify: compare two plans by measuring both in turn, or two sets of runs that are in the journal."""

import argparse
import fnmatch
from pathlib import Path

import msgspec

from powerband.case import Case, CaseRequest, prepare
from powerband.cli import options, verify_quality
from powerband.cli.command_line import command_line
from powerband.cli.progress import Narrator
from powerband.cli.sessions import held
from powerband.engines.base import get_engine
from powerband.evaluate import Trials
from powerband.gate import to_result
from powerband.loop import MINIMUM_EFFECT, Loop
from powerband.plan import read_plan
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.run import Run
from powerband.records.slo import parse_slo
from powerband.records.units import parse_duration
from powerband.records.verdict import Verdict
from powerband.stores.run_dir import find_run, is_run, read_run, run_ids
from powerband.stores.sqlite import Journal
from powerband.verify.compare import compare
from powerband.verify.quality import need_quality


def add_arguments(parser: argparse.ArgumentParser) -> None:
    accepted = (
        "a plan (.toml), a run's folder, or run ids of the journal (comma, or a pattern such as 'loop-1*-before'); "
        "with --quality also a .gguf file or a server's URL"
    )
    parser.add_argument("baseline", metavar="BASELINE", help=accepted)
    parser.add_argument("candidate", metavar="CANDIDATE", help="the same, after the change")
    parser.add_argument(
        "--minimum-effect", type=float, default=MINIMUM_EFFECT, help="smallest gain worth it (default 0.03)"
    )
    options.add_traffic(parser)
    group = parser.add_argument_group("measuring (plans only)")
    group.add_argument("--repeats", type=int, default=3, help="runs of each, interleaved (default 3)")
    group.add_argument("--window", help="seconds of arrivals in each run (default 20s)")
    verify_quality.add_arguments(parser)
    options.add_device(parser)
    options.add_home(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.minimum_effect <= 10:
        raise RequestError(
            f"--minimum-effect {args.minimum_effect} is not possible", hint="write a share, such as 0.03: 0 to 10"
        )
    if args.quality:
        return verify_quality.run(args)
    plans = [Path(side) for side in (args.baseline, args.candidate) if side.endswith(".toml")]
    if len(plans) == 1:
        raise RequestError("one side is a plan, the other is not", hint="compare two plans, or two sets of runs")
    verdict = _measured(args, *map(read_plan, plans)) if plans else _stored(args)
    if args.json:
        options.print_json(verdict)
    else:
        from powerband.report.text import render_comparison

        options.print_text(render_comparison(verdict, **options.terminal()))
    return 0 if verdict.verdict == "keep" else 1


def _stored(args: argparse.Namespace) -> Verdict:
    before, after = _runs(args.home, args.baseline), _runs(args.home, args.candidate)
    if both := {run.run_id for run in before} & {run.run_id for run in after}:
        raise RequestError(f"{min(both)} is on both sides", hint="a run cannot be compared with itself: name two")
    configs = {run.config.key: run.config for run in before}, {run.config.key: run.config for run in after}
    for side, name in zip(configs, (args.baseline, args.candidate), strict=True):
        if len(side) > 1:
            raise RequestError(f"{name!r} names runs of {len(side)} configs", hint="each side must be one config")
    workloads = {msgspec.json.encode(run.workload.requests) for run in (*before, *after)}
    if len(workloads) > 1:
        raise RequestError("the runs did not serve the same workload", hint="compare runs of one session")
    slo = parse_slo(args.slo) if args.slo is not None else None
    first, second = before[0].config, after[0].config
    quality = need_quality(first, second, get_engine(second.engine).knobs())
    gate = verify_quality.gate_of(args, Narrator(quiet=args.quiet))
    if quality.verdict == "not_run" and gate is not None:
        kept = gate.recall(first, second)
        quality = quality if kept is None else to_result(kept)
    return compare(before, after, slo=slo, minimum_effect=args.minimum_effect, quality=quality)


def _runs(home: Path, text: str) -> list[Run]:
    if is_run(Path(text)):
        return [read_run(Path(text))]
    known = run_ids(home)
    found = [name for part in text.split(",") for name in (fnmatch.filter(known, part.strip()) or [part.strip()])]
    return [read_run(find_run(home, name)) for name in dict.fromkeys(found)]


def _measured(args: argparse.Namespace, before: EngineConfig, after: EngineConfig) -> Verdict:
    if before.engine != after.engine:
        raise RequestError(
            f"the plans differ in engine: {before.engine} and {after.engine}",
            hint="verify measures settings and models of one engine; --quality compares the answers of any two",
        )
    request = CaseRequest(
        model=before.model,
        engine=before.engine,
        device=args.device,
        count=args.count,
        traffic=args.traffic,
        requests=args.requests,
        scale_lengths=args.scale_lengths,
        scale_outputs=args.scale_outputs,
        scale_rate=None if args.scale_rate is None else str(args.scale_rate),
        window_s=parse_duration(args.window) if args.window else 20.0,
        slo=args.slo,
        repeats=args.repeats,
        seed=args.seed,
    )
    case = _checked(prepare(request), before, after)
    narrator = Narrator(quiet=args.quiet)
    gate = verify_quality.gate_of(args, narrator)  # a wrong request leaves no trace in the journal
    journal = Journal(args.home)
    session = journal.begin("verify", msgspec.json.encode(request).decode())
    trials = Trials(
        journal,
        session.session_id,
        case.engine,
        slo=case.slo,
        budget_s=float("inf"),
        command=command_line(),
        watcher=narrator,
    )
    loop = Loop(case, trials)
    with held(journal, session):
        loop.gate = gate
        verdict = loop.compare(before, after, minimum_effect=args.minimum_effect)
    if loop.gate is not None:
        verify_quality.write_pages(args.home, loop.gate, narrator)
    journal.put_document(session.session_id, "verdict", msgspec.json.encode(verdict))
    journal.end(session.session_id, "done", verdict.reason)
    return verdict


def _checked(case: Case, *configs: EngineConfig) -> Case:
    for config in configs:
        reason = case.refuses(config)
        if reason is not None:
            raise RequestError(f"a plan cannot serve this traffic: {reason}", hint="change the plan or the traffic")
    return case
