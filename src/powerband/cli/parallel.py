"""``powerband simulate --plan``: the cards of a node split into tensor parallelism and replicas, the best first."""

import argparse
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from powerband.cli import options
from powerband.cli.simulate_space import refusal_of
from powerband.records.config import TENSOR_KNOB, EngineConfig, tensor_parallel
from powerband.records.errors import RequestError
from powerband.records.parallel import ParallelPlan, Split
from powerband.records.run import Run
from powerband.records.slo import parse_slo
from powerband.records.units import format_duration, parse_duration, percent
from powerband.report.text import draw


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plan", action="store_true", help="split --count cards into tensor parallelism and replicas, the best first"
    )
    parser.add_argument(
        "--trace", action="append", default=[], metavar="TP=FILE",
        help="with --plan: a profiler trace at this TP, whose communication share replaces the predicted one",
    )  # fmt: skip


def run(args: argparse.Namespace, config: EngineConfig, runs: list[Run]) -> int:
    """Exit code 1 where no split fits or keeps the promise."""
    from powerband.probes.checkpoint import read_model
    from powerband.probes.device import read_device
    from powerband.simulate.parallel import Question

    if not args.plan:
        raise RequestError("--trace belongs to --plan", hint="to read a trace by itself: powerband locate FILE")
    if args.sweep or args.replicas != 1:
        raise RequestError("--plan tries every split itself", hint="leave out --sweep and --replicas")
    _only_splits(args, config)
    model, device = read_model(args.model), read_device(args.device)
    question = Question(
        model=model,
        device=device,
        config=config,
        cards=args.count,
        workload=options.read_workload(args),
        memory_of=lambda wanted, ranks: _memory(model, device, wanted, ranks),
        slo=parse_slo(args.slo) if args.slo else None,
        deadline_s=parse_duration(args.deadline) if args.deadline else None,
    )
    found = _plan(question, runs, _traces(args.trace))
    if args.json:
        options.print_json(found)
    else:
        options.print_text(_screen(found, config))
    return 0 if found.chosen is not None and found.splits[0].holds is not False else 1


def _only_splits(args: argparse.Namespace, config: EngineConfig) -> None:
    """What the plan does not read is refused, not passed over."""
    knob = TENSOR_KNOB.get(config.engine, "")
    if knob in config.knobs:
        raise RequestError(f"--plan tries every {knob} itself", hint=f"leave out --set {knob}")
    unread = {"--breaking": args.breaking, "--price": args.price, "--objective": args.objective}
    unread |= {"--speculate": args.speculate, "--router": args.router != "least_loaded"}
    for option, given in unread.items():
        if given:
            raise RequestError(
                f"--plan does not read {option}", hint=f"leave it out, or simulate one split with {option}"
            )


def _memory(model: Any, device: Any, config: EngineConfig, ranks: int) -> Any:
    from powerband.account.ledger import compute_ledger
    from powerband.simulate.parallel import Memory

    if refused := refusal_of(config):
        return Memory(fits=False, kv_tokens=0, shortage=refused)
    ledger = compute_ledger(model, device, config, count=ranks, remedies=False)
    return Memory(fits=ledger.fits, kv_tokens=ledger.capacity.kv_tokens, shortage=ledger.shortage)


def _plan(question: Any, runs: list[Run], traces: dict[int, Path]) -> ParallelPlan:
    """The prediction; where runs or traces measured the communication, theirs in its place, with the verdict."""
    from powerband.locate.communication import communication_share
    from powerband.probes.trace_file import read_trace
    from powerband.simulate.calibrate import fit_step_time
    from powerband.simulate.communication import loosened, with_share
    from powerband.simulate.parallel import confirm, plan_parallel, shares_of
    from powerband.simulate.step_time import predict_from_datasheet

    prior = predict_from_datasheet(question.model, question.device, question.config)
    single = [run for run in runs if tensor_parallel(run.config) == 1]
    several = [run for run in runs if tensor_parallel(run.config) > 1]
    predicted = plan_parallel(question, fit_step_time(single, prior))
    if traces:
        shares = {tensor: communication_share(read_trace(path)) for tensor, path in traces.items()}
        expected, (tensor, measured) = shares_of(predicted), max(shares.items())
        if tensor not in expected:
            raise RequestError(
                f"no split has the trace's TP {tensor}", hint="tried: " + ", ".join(map(str, expected)) or "none fits"
            )
        step = with_share(fit_step_time(runs, loosened(prior)), expected[tensor][0], min(measured[0], 0.99))
        names = ", ".join(str(path) for path in traces.values())
        return confirm(predicted, plan_parallel(question, step), shares, f"trace {names}")
    if single and several:
        measured_plan = plan_parallel(question, fit_step_time(runs, loosened(prior)))
        seen = {tensor_parallel(run.config) for run in several}
        shares = {tensor: share for tensor, share in shares_of(measured_plan).items() if tensor in seen}
        return confirm(predicted, measured_plan, shares, "runs " + ", ".join(run.run_id for run in runs))
    return predicted


def _traces(pairs: list[str]) -> dict[int, Path]:
    found = {}
    for pair in pairs:
        tensor, equals, path = pair.partition("=")
        if not equals or not tensor.strip().isdecimal():
            raise RequestError(f"cannot read --trace {pair!r}", hint="write TP=FILE, such as 2=trace.json.gz")
        found[int(tensor)] = Path(path)
    return found


def _screen(plan: ParallelPlan, config: EngineConfig) -> str:
    from powerband.simulate.parallel import DRAWS

    source = "the datasheet, not calibrated" if plan.step_basis == "computed" else f"{plan.step_basis} steps"
    head = f"{plan.model} on {plan.cards} x {plan.device} with {config.engine}; simulated, step time from {source}"
    answer = "No split fits." if plan.chosen is None else f"Take {plan.chosen}."
    lines: list[Any] = [Text(answer, style="bold"), Text(plan.reason + "."), Text(head), _table(plan)]
    if plan.chosen is not None:
        lines.append(
            Text(
                "decode step: the time of a step, at the mean number of sequences in it; brackets: 90 % intervals; "
                f"best in: of {DRAWS} draws of the step time's doubt, those in which the split is best"
            )
        )
    for one in plan.verdicts:
        predicted, measured = one.predicted_interval, one.measured_interval
        lines.append(
            Text(
                f"communication at TP {one.tensor}: predicted {percent(one.predicted)} [{percent(predicted.low)}, "
                f"{percent(predicted.high)}], measured {percent(one.measured)} "
                f"[{percent(measured.low)}, {percent(measured.high)}] "
                f"({one.source}): {one.verdict}"
            )
        )
    lines += [Text(f"link: {plan.link}"), Text(f"to prove it: {plan.proof}")]
    return draw([*lines, *map(Text, plan.notes)], **options.terminal())


# Two lines a cell: so they stand beside each other in 80 columns.
_COLUMNS = ("split", "output\ntokens/s", "TTFT\np50, p99", "TPOT\np50", "decode\nstep", "communication", "best\nin")


def _table(plan: ParallelPlan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="", pad_edge=False)
    for place, name in enumerate(_COLUMNS):
        table.add_column(name, vertical="top", no_wrap=place != 1)  # the one that says what does not fit gives way
    for split in plan.splits:
        table.add_row(*_row(split))
    return table


def _row(split: Split) -> list[str]:
    figures = split.figures
    if figures is None:
        return [split.name, f"does not fit: {split.shortage}", *[""] * (len(_COLUMNS) - 2)]
    share, low_high = figures.communication, figures.interval
    kept = "" if split.holds is None else "\nkeeps promise" if split.holds else "\nbreaks promise"
    return [
        split.name + kept,
        f"{figures.output_tokens_per_s:,.0f}\n[{low_high.low:,.0f}, {low_high.high:,.0f}]",
        f"{_time(figures.ttft_p50_s)},\n{_time(figures.ttft_p99_s)}",
        _time(figures.tpot_p50_s),
        f"{_time(figures.decode_step_s)}\nat {figures.batch:.0f}",
        f"{percent(share.run)} [{percent(share.interval.low)}, {percent(share.interval.high)}]\n"
        f"decode {percent(share.decode)}\nprompts {percent(share.prefill)}",
        percent(split.wins),
    ]


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)
