"""powerband journal: what was run, found, changed and decided."""

import argparse

import msgspec

from powerband.cli import options
from powerband.cli.session_lock import status_of
from powerband.cli.stored import open_journal, stored_document
from powerband.records.rounds import LoopReport
from powerband.stores.base import Session
from powerband.stores.sqlite import Journal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", metavar="SESSION", help="show its trials and rounds (default: list all)")
    options.add_home(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    journal = open_journal(args.home)
    sessions = [journal.session(args.session)] if args.session else journal.sessions()
    if args.json:
        options.print_json([_document(journal, session) for session in sessions])
        return 0
    from powerband.report.text import render_journal, render_trials

    options.print_text(render_journal([_row(journal, session) for session in sessions], **options.terminal()))
    if args.session:
        options.print_text(render_trials(journal.trials(args.session), **options.terminal()))
    return 0


def _row(journal: Journal, session: Session) -> dict[str, object]:
    report = stored_document(journal, session, "report", LoopReport)
    trials = journal.trials(session.session_id)
    seconds = sum(trial.engine_seconds for trial in trials)
    answer = "" if report is None or report.verdict is None else f"{report.verdict.verdict}: {report.verdict.reason}"
    return {
        "session": session.session_id,
        "status": status_of(journal, session),
        "trials": len(trials),
        "engine_s": None if session.command == "load" else round(seconds),  # its server was started by somebody else
        "answer": answer or session.note or (report.stopped_because if report else ""),
    }


def _document(journal: Journal, session: Session) -> dict[str, object]:
    report = stored_document(journal, session, "report", LoopReport)
    return {
        "session_id": session.session_id,
        "command": session.command,
        "started_at": session.started_at,
        "status": status_of(journal, session),
        "note": session.note,
        "request": _request(session),
        "trials": journal.trials(session.session_id),
        "rounds": report.rounds if report else [],
        "verdict": report.verdict if report else None,
    }


def _request(session: Session) -> msgspec.Raw | str:
    """What was asked: the JSON of commands that can go on with it, the command line of those that cannot."""
    try:
        msgspec.json.decode(session.request)
    except msgspec.DecodeError:
        return session.request
    return msgspec.Raw(session.request.encode())
