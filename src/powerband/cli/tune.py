"""powerband tune: search the settings; what it found is measured again beside the baseline before it is told."""

import argparse

from powerband.cli import options, sessions
from powerband.records.config import tensor_parallel
from powerband.records.rounds import LoopReport
from powerband.records.run import Trial

HOUR_S, MILLION = 3600.0, 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sessions.add_arguments(parser, budget="20m", repeats=2)
    parser.add_argument(
        "--price", type=float, metavar="P", help="of a card for an hour: gives the cost of tokens before and after"
    )


def run(args: argparse.Namespace) -> int:
    price = None if args.price is None else options.check_price(args.price)
    report, journal = sessions.run_session(args, "tune")
    paid = {} if price is None else {"costs": costs(report, price, args.count)}
    if args.json:
        options.print_json(document(report) | sessions.plan_document(journal, report) | paid)
    else:
        from powerband.report.text import render_loop

        options.print_text(render_loop(report, page=None, **options.terminal()))
        for name, cost in paid.get("costs", {}).items():
            options.print_text(f"{name}: {'no tokens' if cost is None else f'{cost:.4g}'} for a million output tokens")
        if words := sessions.plan_words(journal, report):
            options.print_text(words)
    return 0 if report.chosen is not None else 1


def costs(report: LoopReport, price_per_hour: float, cards: int) -> dict[str, float | None]:
    """A million output tokens at the measured speed, all ``cards`` paid for whether they are used or not.

    So on one machine the cheapest config is the one that gives the most, which is what the search looks for.
    """
    by_n = {trial.n: trial for trial in report.trials}
    paid = {}
    for name, n in (("baseline", report.baseline_trial), ("best", report.best_trial)):
        if n is not None:
            trial = by_n[n]
            speed = trial.measured.output_tokens_per_s if trial.measured is not None else 0.0
            used = max(cards, tensor_parallel(trial.config))
            paid[name] = used * price_per_hour / HOUR_S / speed * MILLION if speed > 0 else None
    return paid


def document(report: LoopReport) -> dict[str, object]:
    by_n = {trial.n: trial for trial in report.trials}
    best = by_n[report.best_trial if report.best_trial is not None else report.baseline_trial]
    compared = next((m for m in report.verdict.metrics if m.name == report.objective), None) if report.verdict else None
    return {
        "session_id": report.session_id,
        "baseline": _summary(by_n[report.baseline_trial]),
        "best": _summary(best),
        "gain": compared and {"metric": compared.name, "ratio": compared.ratio, "interval": compared.interval},
        "verdict": report.verdict,
        "trials": report.trials,
        "engine_seconds": report.engine_seconds,
        "stopped_because": report.stopped_because,
        "start_command": report.start_command,
    }


def _summary(trial: Trial) -> dict[str, object]:
    return {"config": trial.config, "metrics": trial.measured, "run_id": trial.run_id}
