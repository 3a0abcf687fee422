"""powerband loop: all of it."""

import argparse
from pathlib import Path

from powerband.cli import ladder_session, options, sessions
from powerband.cli.pages import write_page
from powerband.records.rounds import LoopReport
from powerband.records.run import Run
from powerband.report.loop_document import loop_document
from powerband.stores.sqlite import Journal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sessions.add_arguments(parser, budget="20m", repeats=3)
    group = parser.add_argument_group("ladder")
    group.add_argument(
        "--from",
        dest="ladder_from",
        metavar="ENGINE",
        help="walk from this engine (transformers) to --engine, one measured change a rung; --budget is for one call",
    )
    group.add_argument("--quantized", metavar="MODEL", help="the same model in fewer bits, for the quantised rung")


def run(args: argparse.Namespace) -> int:
    if ladder_session.is_ladder(args):
        return ladder_session.run(args)
    report, journal = sessions.run_session(args, "loop")
    page = write_page(journal.home, report.session_id, loop_document(report, evidence(report, journal)))
    if args.json:
        options.print_json(document(report, journal.home, page) | sessions.plan_document(journal, report))
    else:
        from powerband.report.text import render_loop

        options.print_text(render_loop(report, page=str(page), **options.terminal()))
        if words := sessions.plan_words(journal, report):
            options.print_text(words)
    return 0 if report.chosen is not None or report.best_trial is None else 1


def evidence(report: LoopReport, journal: Journal) -> dict[str, Run]:
    return {trial.run_id: journal.run(trial.run_id) for trial in report.trials if trial.run_id is not None}


def document(report: LoopReport, home: Path, page: Path) -> dict[str, object]:
    """The documents of the stages under their names, as the command line promises them."""
    by_n = {trial.n: trial for trial in report.trials}
    best = by_n.get(report.best_trial) if report.best_trial is not None else None
    return {
        "session_id": report.session_id,
        "account": report.ledger,
        "locate": report.diagnosis_before,
        "tune": {
            "baseline": by_n[report.baseline_trial],
            "best": best,
            "trials": report.trials,
            "engine_seconds": report.engine_seconds,
            "stopped_because": report.stopped_because,
        },
        "verify": report.verdict,
        "rounds": report.rounds,
        "chosen": report.chosen,
        "start_command": report.start_command,
        "traffic": report.traffic,
        "slo": report.slo,
        "journal": str(home / "journal.sqlite"),
        "report": str(page),
    }
