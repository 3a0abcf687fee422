"""powerband simulate: what if; the workload through a model of the engine, no engine started."""

import argparse
from typing import Any

from powerband.cli import options, parallel
from powerband.cli import simulate_answers as answers
from powerband.cli.simulate_space import configs_of, replicas_of, simulated_over, to_be_gated
from powerband.records.config import EngineConfig, tensor_parallel
from powerband.records.errors import RequestError
from powerband.records.run import Run
from powerband.records.slo import parse_slo
from powerband.records.units import parse_duration
from powerband.records.workload import Workload

_LONG_S = 10.0  # from here on a latency is written in seconds
_SHOWN = ("output_tokens_per_s", "goodput_per_s", "attainment", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")


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
        return parallel.run(args, configs[0], _stored_runs(args))
    configs = [simulated_over(config, args.count) for config in configs]
    slo = parse_slo(args.slo) if args.slo else None
    deadline_s = parse_duration(args.deadline) if args.deadline else None
    speculation = answers.parse_speculation(args.speculate)
    model, device = read_model(args.model), read_device(args.device)
    workload = options.read_workload(args)
    step_time = fit_step_time(_stored_runs(args), predict_from_datasheet(model, device, configs[0]))

    def ask(config: EngineConfig, traffic: Workload, replicas: int) -> WhatIf:
        kv_tokens = None
        if config.engine in RULES:  # of the others no ledger says what they hold
            ledger = compute_ledger(model, device, config, count=tensor_parallel(config), remedies=False)
            if not ledger.fits:
                return WhatIf(config=config, refused=f"does not fit into {ledger.device}: {ledger.shortage}")
            kv_tokens = ledger.capacity.kv_tokens
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
        lines = [_screen(found, question.step.basis), *answers.describe(more, found)]
        options.print_text("\n".join(lines))


def _stored_runs(args: argparse.Namespace) -> list[Run]:
    if not args.calibrate:
        return []
    from powerband.cli.stored import stored_runs
    from powerband.stores.sqlite import Journal

    return stored_runs(Journal(args.home), args.calibrate)


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
    front = {config.key for config in _frontier(found)}
    return {
        **head,
        "sweep": found,
        "frontier": [one.config.knobs for one in found if one.config.key in front],
        "to_be_gated": [to_be_gated(one.config) for one in found],
    }


def _frontier(found: list[Any]) -> list[EngineConfig]:
    from powerband.records.value import Missing
    from powerband.tune.pareto import Point, pareto_front

    points = [
        Point(config=one.config, throughput=one.metrics.output_tokens_per_s, latency_s=one.metrics.tpot_s.p50)
        for one in found
        if one.metrics is not None and not isinstance(one.metrics.tpot_s, Missing)
    ]
    return [point.config for point in pareto_front(points)]


def _screen(found: list[Any], step_basis: str) -> str:
    """A column per figure, a row per config; * marks the frontier of throughput against TPOT."""
    front = {config.key for config in _frontier(found)} if len(found) > 1 else set()
    source = "the datasheet, not calibrated" if step_basis == "computed" else f"{step_basis} runs"
    lines = [f"simulated; step time from {source}; brackets: its 90 % interval"]
    for one in found:
        lines.append(f"{'* ' if one.config.key in front else '  '}{answers.name_of(one.config, found)}")
        if one.refused:
            lines.append(f"    {one.refused}")
            continue
        for figure in _SHOWN:
            if figure in one.intervals:
                lines.append(f"    {_figure(figure, one)}")
        if one.holds is not None:
            sure = "" if one.surely else ", but not at both ends of the interval"
            lines.append(f"    the promise {'holds' if one.holds else 'does not hold'}{sure}")
        lines += [f"    {one.shortfall}"] if one.shortfall else []
        lines += [f"    {note}" for note in one.notes]
        if unproved := to_be_gated(one.config):
            lines.append(f"    to be gated: {', '.join(unproved)} alters the answers")
    if front:
        lines.append("* no other config of the sweep has both more output tokens/s and a lower median TPOT")
    return "\n".join(lines)


def _figure(name: str, one: Any) -> str:
    from powerband.simulate.what_if import figures_of

    value, interval = figures_of(one.metrics)[name], one.intervals[name]
    if name.endswith("_per_s") or name == "attainment":
        unit, factor = "  ", 1.0
    else:
        unit, factor = (" s", 1.0) if value >= _LONG_S else ("ms", 1e3)
    shown, low, high = (_number(figure * factor) for figure in (value, interval.low, interval.high))
    return f"{name.removesuffix('_s') if unit.strip() else name:<20} {shown:>10} {unit} [{low}, {high}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
