"""powerband tune: search engines and settings; what was found is measured again beside the baseline."""

import argparse
from typing import get_args

from powerband.cli import options, sessions
from powerband.records.config import TENSOR_KNOB, cards_of
from powerband.records.errors import RequestError
from powerband.records.rounds import Goal, LoopReport
from powerband.records.run import Trial

HOUR_S, MILLION = 3600.0, 1e6
GOALS = get_args(Goal)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sessions.add_arguments(parser, budget="20m", repeats=3)
    parser.add_argument(
        "--price", type=float, metavar="P", help="of a card for an hour: gives the cost of tokens before and after"
    )
    parser.add_argument(
        "--objective",
        choices=GOALS,
        default="speed",
        help="speed: the most goodput or output (default); cost: the cheapest tokens by the cards that a config takes; "
        "cards: the fewest that keep --slo",
    )


def run(args: argparse.Namespace) -> int:
    price = None if args.price is None else options.check_price(args.price)
    if args.objective == "cost" and price is None:
        raise RequestError("the cost of tokens needs a price", hint="add --price 2.5, of one card for one hour")
    report, journal = sessions.run_session(args, "tune")
    paid = {} if price is None else {"costs": costs(report, price, args.count)}
    if args.json:
        options.print_json(document(report) | sessions.plan_document(journal, report) | paid)
    else:
        from powerband.report.text import render_loop

        options.print_text(render_loop(report, page=None, **options.terminal()))
        for name, cost in paid.get("costs", {}).items():
            within = " within the promise" if report.goal == "cost" and report.slo else ""
            shown = "no tokens" if cost is None else f"{cost:.4g}"
            options.print_text(f"{name}: {shown} for a million output tokens{within}")
        if words := sessions.plan_words(journal, report):
            options.print_text(words)
    return 0 if report.chosen is not None else 1


def costs(report: LoopReport, price_per_hour: float, cards: int) -> dict[str, float | None]:
    """A million output tokens at the measured speed: where speed is sought all ``cards`` are paid for, used or not, so
    that the cheapest config is the one that gives the most; else those that the config takes, as the search has it.
    Where the cheapest tokens are sought within a promise, those of answers within it, at the traffic's mean length.
    """
    by_n = {trial.n: trial for trial in report.trials}
    paid = {}
    for name, n in (("baseline", report.baseline_trial), ("best", report.best_trial)):
        if n is not None:
            trial = by_n[n]
            speed = _paid_tokens_per_s(report, trial)
            own = report.goal != "speed" and trial.config.engine in TENSOR_KNOB
            used = cards_of(trial.config) if own else max(cards, cards_of(trial.config))
            paid[name] = used * price_per_hour / HOUR_S / speed * MILLION if speed > 0 else None
    return paid


def _paid_tokens_per_s(report: LoopReport, trial: Trial) -> float:
    if trial.measured is None:
        return 0.0
    if report.goal == "cost" and trial.measured.goodput_per_s is not None:
        return trial.measured.goodput_per_s * report.traffic.output_tokens_mean
    return trial.measured.output_tokens_per_s


def document(report: LoopReport) -> dict[str, object]:
    by_n = {trial.n: trial for trial in report.trials}
    best = by_n[report.best_trial if report.best_trial is not None else report.baseline_trial]
    verdict = report.verdict
    decided = report.objective if verdict is None or verdict.objective is None else verdict.objective
    compared = next((row for row in verdict.metrics if row.name == decided), None) if verdict else None
    return {
        "session_id": report.session_id,
        "baseline": _summary(by_n[report.baseline_trial]),
        "best": _summary(best),
        "gain": compared and {"metric": compared.name, "ratio": compared.ratio, "interval": compared.interval},
        "verdict": verdict,
        "trials": report.trials,
        "engine_seconds": report.engine_seconds,
        "stopped_because": report.stopped_because,
        "start_command": report.start_command,
    }


def _summary(trial: Trial) -> dict[str, object]:
    return {"config": trial.config, "metrics": trial.measured, "run_id": trial.run_id}
