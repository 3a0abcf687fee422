"""The command line: one file a command; parse, call, print; no logic."""

import argparse
import contextlib
import faulthandler
import io
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

from powerband import __version__
from powerband.records.errors import EngineError, PowerbandError, RequestError, unknown_name

# One line each, so that --help imports no command.
COMMANDS = {
    "account": "where the bytes go: does this model fit, with how many users, and what to do if not",
    "load": "send a workload to a server and measure what came back",
    "locate": "where the time goes: what a running service or a finished run was waiting for",
    "calibrate": "a few minutes of self-measurement, so that simulate and tune know this machine",
    "profile": "record a few steps of your own PyTorch program, and say what they wait for",
    "simulate": "what if: the workload through a model of the engine, no engine started",
    "quantize": "which format can this engine and card run, what does it bring; then make it, with a card of how",
    "tune": "what to change: search an engine's settings under a latency promise",
    "verify": "did it help: compare two configs or two runs, beyond noise",
    "loop": "account, locate, tune and verify in rounds, with a journal and a report",
    "journal": "list what was run, found, changed and decided",
    "report": "write the page of a loop, from its journal",
    "doctor": "what this machine has, what is missing, and how to get it",
}

_RESUMED = "; finished trials are in the journal, and --resume goes on from there"
_JOURNALED = "; what had finished is in the journal: powerband journal"
_KEPT = dict.fromkeys(("loop", "tune"), _RESUMED) | dict.fromkeys(("load", "calibrate", "verify"), _JOURNALED)


class Parser(argparse.ArgumentParser):
    """Argument errors take the same two lines as every other error."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(message, hint=f"see {self.prog} --help")

    def print_help(self, file: Any = None) -> None:
        """As argparse does, which says nothing where it cannot write."""
        (file or sys.stdout).write(self.format_help())


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit code is its answer: 0 done, 1 no, 2 wrong request, 3 engine or machine failed."""
    argv = sys.argv[1:] if argv is None else argv
    _open_closed()
    faulthandler.enable(2)  # a crash in a native library says where; a number, since a file would be flushed at exit
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII terminal shows "?" for a sign it lacks
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped politely is stopped as by Ctrl-C
    try:
        return _flushed(argv)
    except PowerbandError as error:
        _print_error(error)
        return error.exit_code
    except UnicodeEncodeError as error:
        if "surrogates" not in error.reason:
            raise
        wrong = RequestError(f"{error.object!r} is not UTF-8", hint="check the argument or the file that it came from")
        _print_error(wrong)
        return wrong.exit_code
    except KeyboardInterrupt:
        _say("stopped" + _KEPT.get(argv[0] if argv else "", ""))
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _let_go_of(sys.stdout)
        return 0
    except OSError as error:  # the disk below stdout is full, or one that a file was to go to
        _let_go_of(sys.stdout)
        where = f"{error.filename}: " if error.filename else ""
        _say(f"error: {where}{error.strerror or error}; is the disk full, or not to be written?")
        return PowerbandError.exit_code


def _flushed(argv: list[str]) -> int:
    """The command with its output all written: what fails only at the end fails here, and --help as any other."""
    try:
        return _dispatch(argv)
    finally:
        sys.stdout.flush()


def _open_closed() -> None:
    """Output that was closed (``>&-``) goes nowhere; what Python puts in its place cannot be written to."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115


def _let_go_of(stream: TextIO) -> None:
    """What is left in the buffer would fail again as Python ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(_overview())
        return 0
    if argv[0] in ("-V", "--version"):
        sys.stdout.write(f"powerband {__version__}\n")
        return 0
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    command = import_module(f"powerband.cli.{name}")
    parser = Parser(prog=f"powerband {name}", description=COMMANDS[name].capitalize() + ".")
    command.add_arguments(parser)
    exit_code: int = command.run(parser.parse_args(rest))
    return exit_code


def _overview() -> str:
    lines = [
        "usage: powerband COMMAND ...",
        "",
        "Finds the range of speeds in which an LLM engine does its best work.",
        "",
    ]
    lines += [f"  {name:<10}{text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", "powerband COMMAND --help shows a command's options.", ""])


def _print_error(error: PowerbandError) -> None:
    _say(f"error: {error.message}")
    if error.hint:
        _say(f"hint: {error.hint}")
    if isinstance(error, EngineError):
        for line in error.log_tail:
            _say(f"  | {line}")


def _say(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:  # stderr may be on that disk too; the exit code still tells
        _let_go_of(sys.stderr)
