"""powerband profile: record a few steps of your own program, and say what they wait for."""

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from powerband.cli.options import add_output, print_json, print_text, terminal
from powerband.profiling import recorder
from powerband.profiling.attach import check_counts, diagnose_recording
from powerband.records.errors import EngineError, RequestError
from powerband.records.finding import Diagnosis

_HINT = "write: powerband profile -- python script.py arguments (or python -m module ...)"
_TAKES_NO_VALUE = frozenset("bBdEhiIOPqRsSuvVx")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=20, help="forward passes to record (default 20)")
    parser.add_argument("--warm-up", type=int, default=5, help="forward passes before them (default 5)")
    parser.add_argument("--stack", action="store_true", help="record Python stacks too: larger and slower")
    parser.add_argument("--out", type=Path, help="keep the trace here (.json or .json.gz)")
    parser.add_argument("--with", dest="tool", choices=("torch", "nsys"), default="torch", help="default: torch")
    add_output(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program, after --")


def run(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise RequestError("no program to profile is given", hint=_HINT)
    check_counts(args.steps, args.warm_up)
    with tempfile.TemporaryDirectory(prefix="powerband-") as folder:
        found = _with_nsys(args, command, Path(folder)) if args.tool == "nsys" else _record(args, command, Path(folder))
    if args.json:
        print_json(found)
    else:
        from powerband.report.diagnosis import render_diagnosis

        print_text(render_diagnosis(found, **terminal()))
    return 0


def _record(args: argparse.Namespace, command: list[str], folder: Path) -> Diagnosis:
    python, options, program = split_command(command)
    trace = (args.out or folder / "trace.json.gz").absolute()
    if trace.suffix not in (".json", ".gz"):
        raise RequestError(f"--out {args.out} is no trace's name", hint="end it with .json or .json.gz")
    settings, summary = folder / "settings.json", folder / "summary.json"
    wanted = {"trace": str(trace), "summary": str(summary), "steps": args.steps, "warm_up": args.warm_up}
    settings.write_text(json.dumps({**wanted, "stack": args.stack}), encoding="utf-8")
    code = _run([python, *options, recorder.__file__, str(settings), *program])
    try:
        recorded: dict[str, Any] = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise EngineError(f"the program ended with code {code} before anything was recorded", hint=_HINT) from None
    if code not in (0, 130) and not recorded.get("steps_recorded"):
        said = recorded["failure"] or f"the program ended with code {code} and no step was recorded"
        own = "name the interpreter of the program's own environment, such as .venv/bin/python"
        raise EngineError(said, hint=own if code == 2 else f"does it run by itself? {shlex.join(command)}")
    return diagnose_recording(recorded)


def split_command(command: list[str]) -> tuple[str, list[str], list[str]]:
    """The interpreter, its own options, and the program with its arguments; RequestError where it is no Python."""
    head = command[0]
    if head.endswith(".py"):
        return sys.executable, [], command
    if not Path(head).name.startswith("python"):
        raise RequestError(f"{head!r} is no Python program", hint=f"{_HINT}; or record any program with --with nsys")
    options: list[str] = []
    rest = command[1:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        word = rest.pop(0)
        options.append(word)
        if word in ("-W", "-X") and rest:
            options.append(rest.pop(0))
        elif word[1:2] not in _TAKES_NO_VALUE | {"W", "X"}:
            raise RequestError(f"cannot read the interpreter's option {word!r}", hint=_HINT)
    if not rest or (rest[0] in ("-m", "-c") and len(rest) < 2):
        raise RequestError("no script, -m module or -c code is given", hint=_HINT)
    return head, options, rest


def _run(command: list[str]) -> int:
    """Run it in front: its output goes to stderr, since stdout is for the answer; Ctrl-C is its to handle."""
    try:
        process = subprocess.Popen(command, stdout=sys.stderr.fileno())
    except OSError as error:
        raise RequestError(f"{command[0]} does not start: {error.strerror}", hint=_HINT) from None
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if sys.stdin.isatty() else None
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        return process.wait()
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _with_nsys(args: argparse.Namespace, command: list[str], folder: Path) -> Diagnosis:
    """Nsight Systems over the whole program, exported and read; it needs no torch."""
    from powerband.locate.timeline import diagnose_timeline
    from powerband.probes.nsys import read_nsys

    nsys = shutil.which("nsys")
    if nsys is None:
        raise RequestError("nsys is not on the PATH", hint="install Nsight Systems, or use --with torch")
    report, exported = folder / "report", folder / "report.sqlite"
    code = _run([nsys, "profile", "--trace=cuda,nvtx,osrt", "--force-overwrite=true", f"--output={report}", *command])
    made = next(iter(folder.glob("report.*rep")), None)
    if made is None:
        raise EngineError(f"nsys ended with code {code} and left no report", hint="its own words stand above")
    _run([nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={exported}", str(made)])
    if not exported.is_file():
        raise EngineError("nsys did not export its report", hint="its own words stand above")
    if args.out:
        shutil.copyfile(exported, args.out)
    return diagnose_timeline(read_nsys(exported))
