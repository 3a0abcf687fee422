"""A ladder as a session of ``powerband loop --from``: begin or resume it, climb, write its page."""

import argparse

import msgspec

from powerband.case import CaseRequest
from powerband.cli import options, sessions, verify_quality
from powerband.cli.command_line import command_line
from powerband.cli.pages import write_page
from powerband.cli.progress import Narrator
from powerband.cli.stored import loop_session
from powerband.ladder.case import prepare_ladder
from powerband.ladder.climb import Ladder
from powerband.records.errors import RequestError
from powerband.records.units import parse_duration
from powerband.report.ladder import ladder_document
from powerband.report.ladder_text import render_ladder
from powerband.stores.base import Session
from powerband.stores.sqlite import Journal

_TOP = "the top was reached"


def is_ladder(args: argparse.Namespace) -> bool:
    """Whether ``--from`` was given, or the session to resume is a ladder."""
    if args.resume is None:
        return args.ladder_from is not None
    if not (args.home / "journal.sqlite").is_file():
        return False
    journal = Journal(args.home)
    try:
        return _request(loop_session(journal, args.resume or None)).ladder_from is not None
    finally:
        journal.close()


def run(args: argparse.Namespace) -> int:
    """Climb as far as ``--budget`` of this call pays for; 0 also where it was cut off, since --resume goes on."""
    verify_quality.task_of(args)
    request = None if args.resume is not None else sessions.request_of(args)
    case = None if request is None else prepare_ladder(request)  # a wrong request leaves no trace in the journal
    journal = Journal(args.home)
    if request is None or case is None:
        session = loop_session(journal, args.resume or None)
        case = prepare_ladder(_request(session))
    else:
        session = journal.begin("loop", msgspec.json.encode(request).decode())
    seconds = parse_duration(args.budget)
    narrator = Narrator(quiet=args.quiet)
    narrator.say(f"session {session.session_id} in {args.home}: a ladder, at most {args.budget} in this call")
    with sessions.held(journal, session):
        ladder = Ladder(
            case,
            journal,
            session.session_id,
            command=command_line(),
            seconds=seconds,
            watcher=narrator,
        )
        report = ladder.climb()
        journal.put_document(session.session_id, "ladder", msgspec.json.encode(report))
    if report.stopped_because != _TOP:
        journal.end(session.session_id, "stopped", report.stopped_because)
    page = write_page(journal.home, report.session_id, ladder_document(report))
    if args.json:
        options.print_json({"ladder": report, "journal": str(journal.home / "journal.sqlite"), "report": str(page)})
    else:
        options.print_text(render_ladder(report, page=str(page), **options.terminal()))
    return 0 if any(rung.status == "done" for rung in report.rungs) else 3


def _request(session: Session) -> CaseRequest:
    try:
        return msgspec.json.decode(session.request, type=CaseRequest)
    except msgspec.DecodeError:
        raise RequestError(
            f"session {session.session_id} is a {session.command}", hint="only loop and tune resume"
        ) from None
