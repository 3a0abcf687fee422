"""powerband report: the page of a loop, drawn again from its journal."""

import argparse
from pathlib import Path

from powerband.cli import options
from powerband.cli.loop import evidence
from powerband.cli.session_lock import status_of
from powerband.cli.stored import RESUMABLE, loop_session, open_journal, stored_document
from powerband.records.errors import RequestError
from powerband.records.ladder import LadderReport
from powerband.records.rounds import LoopReport
from powerband.report.ladder import ladder_document
from powerband.report.loop_document import loop_document
from powerband.report.markdown import draw_markdown
from powerband.report.page import render_document
from powerband.stores.base import Session
from powerband.stores.sqlite import Journal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", metavar="SESSION", help="a loop of the journal (default: the last)")
    parser.add_argument(
        "--out", type=Path, help="the file to write; .md writes Markdown (default SESSION.html in --home)"
    )
    options.add_home(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    journal = open_journal(args.home)
    session = loop_session(journal, args.session)
    if session.command not in RESUMABLE:
        raise RequestError(
            f"session {session.session_id} is a {session.command}, which has no page", hint=_instead(journal, session)
        )
    report = stored_document(journal, session, "report", LoopReport)
    ladder = stored_document(journal, session, "ladder", LadderReport)  # of a ladder, as far as it was climbed
    if report is None and ladder is None:
        raise RequestError(
            f"session {session.session_id} has not come to its end ({status_of(journal, session)})",
            hint=f"go on with it: powerband {session.command} --resume {session.session_id}",
        )
    out: Path = args.out or journal.home / "reports" / f"{session.session_id}.html"
    draw = draw_markdown if out.suffix == ".md" else render_document
    if ladder is not None:
        document = ladder_document(ladder)
    else:
        assert report is not None  # one of the two is there
        document = loop_document(report, evidence(report, journal))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(draw(document), encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {out}: {error.strerror}", hint="choose another --out") from error
    if args.json:
        options.print_json({"session_id": session.session_id, "report": str(out)})
    else:
        options.print_text(str(out))
    return 0


def _instead(journal: Journal, session: Session) -> str:
    """The command that shows what a session without a page has found."""
    if session.command != "load":
        return f"see powerband journal {session.session_id}"
    runs = [trial.run_id for trial in journal.trials(session.session_id) if trial.run_id]
    return f"see powerband load --show {runs[-1] if runs else 'RUN'}"
