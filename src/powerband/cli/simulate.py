"""powerband simulate: what if; the workload through a model of the engine, no engine started."""

import argparse
from collections.abc import Sequence
from typing import Any

from powerband.cli import options, parallel
from powerband.cli import simulate_answers as answers
from powerband.cli.simulate_screen import draw_answer, draw_found, frontier
from powerband.cli.simulate_space import configs_of, refusal_of, replicas_of, simulated_over, to_be_gated
from powerband.records.config import EngineConfig, tensor_parallel
from powerband.records.errors import RequestError
from powerband.records.hardware import DeviceSpec
from powerband.records.run import Run
from powerband.records.slo import parse_slo
from powerband.records.units import parse_duration
from powerband.records.workload import Workload
from powerband.report.width import wrap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a folder with config.json, a .gguf file, or a hub id"
    )
    options.add_engine(parser)
    options.add_device(parser)
    options.add_traffic(parser)
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=A,B,C",
        help="try each value of a knob, or each engine=A,B; repeatable",
    )
    parser.add_argument("--replicas", type=int, default=1, help="engines behind a router (default 1)")
    parser.add_argument("--router", choices=("least_loaded", "round_robin"), default="least_loaded")
    parallel.add_arguments(parser)
    answers.add_arguments(parser)
    parser.add_argument("--deadline", metavar="TIME", help="what has not ended by then counts as dropped, such as 60s")
    parser.add_argument(
        "--calibrate",
        action="append",
        default=[],
        metavar="RUN",
        help="fit the step time to a run of the journal, or to all usable runs of a session",
    )
    options.add_home(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where a promise was given and no config keeps it, or where no config fits."""
    from powerband.account.ledger import compute_ledger
    from powerband.account.rules import RULES
    from powerband.probes.checkpoint import read_model
    from powerband.probes.device import read_device
    from powerband.simulate.calibrate import fit_step_time
    from powerband.simulate.step_time import predict_from_datasheet
    from powerband.simulate.what_if import WhatIf, what_if

    if not 1 <= args.replicas <= 1000:
        raise RequestError(f"--replicas {args.replicas} is not possible", hint="accepted: 1 to 1000")
    answers.fill_in(args)
    configs = configs_of(args)
    if args.plan or args.trace:
        return parallel.run(args, configs[0], _stored_runs(args, configs, read_device(args.device)))
    configs = [simulated_over(config, args.count) for config in configs]
    slo = parse_slo(args.slo) if args.slo else None
    deadline_s = parse_duration(args.deadline) if args.deadline else None
    speculation = answers.parse_speculation(args.speculate)
    model, device, workload = read_model(args.model), read_device(args.device), options.read_workload(args)
    step_time = fit_step_time(_stored_runs(args, configs, device), predict_from_datasheet(model, device, configs[0]))

    def ask(config: EngineConfig, traffic: Workload, replicas: int) -> WhatIf:
        kv_tokens, reason = None, refusal_of(config)
        if reason is None and config.engine in RULES:  # of the others no ledger says what they hold
            ledger = compute_ledger(model, device, config, count=tensor_parallel(config), remedies=False)
            kv_tokens = ledger.capacity.kv_tokens
            reason = None if ledger.fits else f"does not fit into {ledger.device}: {ledger.shortage}"
        if reason is not None:
            return WhatIf(config=config, holds=None if slo is None else False, refused=reason)
        return what_if(
            config,
            traffic,
            step_time,
            kv_tokens=kv_tokens,
            slo=slo,
            deadline_s=deadline_s,
            replicas=replicas,
            router=args.router,
            speculation=speculation,
        )

    found = [ask(config, workload, replicas_of(config, args)) for config in configs]
    question = answers.Question(
        args, model, device, workload, slo, deadline_s, step_time, ask, lambda config: replicas_of(config, args)
    )
    _tell(question, found)
    kept = any(one.holds for one in found) if slo else any(one.refused is None for one in found)
    return 0 if kept else 1


def _tell(question: answers.Question, found: list[Any]) -> None:
    more, args = answers.collect(question, found), question.args
    if args.json:
        names = question.model.name, question.device.name, question.workload.source
        options.print_json(_document(args, found, *names) | more)
    else:
        lines = [*draw_answer(more, found), *draw_found(found, question.step.basis), *answers.describe(more, found)]
        width = options.screen_width()
        options.print_text("\n".join(wrap(line, width, 6 if line.startswith(" ") else 2) for line in lines))


def _stored_runs(args: argparse.Namespace, configs: Sequence[EngineConfig], device: DeviceSpec) -> list[Run]:
    if not args.calibrate:
        return []
    from powerband.cli.stored import calibrating_runs
    from powerband.stores.sqlite import Journal

    return calibrating_runs(Journal(args.home), args.calibrate, configs, device)


def _document(args: argparse.Namespace, found: list[Any], model: str, device: str, traffic: str) -> dict[str, Any]:
    head = {
        "model": model,
        "device": device,
        "count": args.count,
        "replicas": args.replicas,
        "engine": args.engine,
        "traffic": traffic,
        "basis": "simulated",
        "calibrated_on": args.calibrate,
    }
    if not args.sweep:
        one = found[0]
        return {
            **head,
            "config": one.config.knobs,
            "to_be_gated": to_be_gated(one.config),
            "step_basis": one.step_basis,
            "metrics": one.metrics,
            "intervals": one.intervals,
            "holds": one.holds,
            "surely": one.surely,
            "shortfall": one.shortfall,
            "refused": one.refused,
            "notes": one.notes,
        }
    front = {config.key for config in frontier(found)}
    return {
        **head,
        "sweep": found,
        "frontier": [one.config.knobs for one in found if one.config.key in front],
        "to_be_gated": [to_be_gated(one.config) for one in found],
    }
