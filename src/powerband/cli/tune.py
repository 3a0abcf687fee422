"""powerband tune: search the settings; what it found is measured again beside the baseline before it is told."""

import argparse

from powerband.cli import options, sessions
from powerband.records.rounds import LoopReport
from powerband.records.run import Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sessions.add_arguments(parser, budget="20m", repeats=2)


def run(args: argparse.Namespace) -> int:
    report, journal = sessions.run_session(args, "tune")
    if args.json:
        options.print_json(document(report) | sessions.plan_document(journal, report))
    else:
        from powerband.report.text import render_loop

        options.print_text(render_loop(report, page=None, **options.terminal()))
        if words := sessions.plan_words(journal, report):
            options.print_text(words)
    return 0 if report.chosen is not None else 1


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
