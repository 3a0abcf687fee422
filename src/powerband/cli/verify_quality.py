"""The quality half of ``powerband verify``: its options, the pair it is asked about, and how the answer is shown."""

import argparse
import time
from pathlib import Path

from powerband.cli import options
from powerband.cli.command_line import command_line
from powerband.cli.progress import Narrator
from powerband.engines.base import get_engine
from powerband.gate import Gate
from powerband.load.quality.tasks import PRESETS, load_task
from powerband.plan import read_plan
from powerband.records.config import EngineConfig, parse_settings
from powerband.records.errors import RequestError
from powerband.records.quality import QualityReport, QualityTask
from powerband.records.units import format_duration, parse_duration, percent
from powerband.records.workload import Workload
from powerband.report.page import render_document
from powerband.report.quality import quality_document

_TASKS = f"{', '.join(PRESETS)}, or a JSONL file of prompts"


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """What describes a task, shared by every command that may need the gate."""
    group = parser.add_argument_group("quality gate")
    group.add_argument(
        "--task", default="chat", metavar="TASK", help=f"what the model is for: {_TASKS} (default chat); none: no gate"
    )
    group.add_argument("--limits", metavar="PRESET", help="whose limits hold (default: the task's own; a file: chat)")
    group.add_argument("--judge", metavar="COMMAND", help="exits 0 where an answer is right; gets it as JSON on stdin")
    group.add_argument("--judge-timeout", default="10s", help="an answer that takes longer is wrong (default 10s)")
    group.add_argument("--prompts", type=int, default=0, metavar="N", help="only the first N prompts and passages")
    group.add_argument("--answer-tokens", type=int, default=0, metavar="N", help="longest answer (default: by task)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quality",
        action="store_true",
        help="compare answers alone, not speed; either side may be a plan, a model, or a server's URL",
    )
    add_task_arguments(parser)
    parser.add_argument("--engine", help="engine for a model that is no plan (default llamacpp)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an engine knob for both")


def task_of(args: argparse.Namespace) -> QualityTask | None:
    """The task that the options describe, None for "none"; raises RequestError for what is wrong in it."""
    judge_timeout_s = parse_duration(args.judge_timeout)
    for name, value in (("--prompts", args.prompts), ("--answer-tokens", args.answer_tokens)):
        if value < 0:
            raise RequestError(f"{name} {value} is below 0", hint="leave it out for all that the task asks")
    if args.task == "none":
        return None
    return load_task(
        args.task,
        limits=args.limits,
        judge=args.judge,
        judge_timeout_s=judge_timeout_s,
        most=args.prompts,
        answer_tokens=args.answer_tokens,
    )


def gate_of(args: argparse.Namespace, narrator: Narrator) -> Gate | None:
    """The gate of that task, None where it is "none"."""
    task = task_of(args)
    if task is None:
        return None
    return Gate(
        task=task,
        home=args.home,
        command=command_line(),
        say=narrator.say,
        on_share=_Share(narrator),
    )


class _Share:
    """Time left, on a line of its own, at most every ten seconds."""

    def __init__(self, narrator: Narrator) -> None:
        self._narrator = narrator
        self._began_s = self._told_s = time.monotonic()
        self._last = 0.0

    def __call__(self, share: float) -> None:
        now_s = time.monotonic()
        if share < self._last:
            self._began_s = self._told_s = now_s
        self._last = share
        if now_s - self._told_s >= 10 and 0 < share < 1:
            self._told_s = now_s
            left_s = (now_s - self._began_s) * (1 - share) / share
            self._narrator.say(f"quality        {percent(share)} asked, about {format_duration(left_s)} left")


def run(args: argparse.Namespace) -> int:
    narrator = Narrator(quiet=args.quiet)
    gate = gate_of(args, narrator)
    if gate is None:
        raise RequestError("--quality without a task", hint=f"give --task {_TASKS}")
    sides = [side_of(text, args.engine, args.set) for text in (args.baseline, args.candidate)]
    report = gate.check(*sides)
    page = write_page(args.home, report)
    if args.json:
        options.print_json({"quality": report, "page": str(page)})
    else:
        from powerband.report.quality import render_quality

        options.print_text(render_quality(report, page=str(page), **options.terminal()))
    return 0 if report.verdict == "passed" else 1


def side_of(text: str, engine_name: str | None, settings: list[str]) -> EngineConfig:
    """One side of the comparison: a plan, a model that the engine can load, or a server's URL."""
    if text.endswith(".toml"):
        config = read_plan(Path(text))
        engine = get_engine(config.engine)
        return config.replace(**parse_settings(settings, engine.knobs()))
    if text.startswith(("http://", "https://")):
        return EngineConfig(engine="openai", model=text, knobs={"url": text})
    engine = get_engine(engine_name or "llamacpp")
    if engine.loads_model and engine.name == "llamacpp" and not Path(text).is_file():
        raise RequestError(
            f"no plan, model file or URL {text!r}", hint="give a .toml plan, a .gguf file, or http://..."
        )
    nothing = Workload(requests=(), source="quality")
    model = str(Path(text).resolve()) if Path(text).exists() else text
    config = engine.naive(model, nothing)
    return config.replace(**parse_settings(settings, engine.knobs()))


def write_pages(home: Path, gate: Gate, narrator: Narrator) -> None:
    """A page for each verdict of this session, and a line that says where it lies."""
    for report in gate.reports:
        narrator.say(f"quality        {report.verdict}; page: {write_page(home, report)}")


def write_page(home: Path, report: QualityReport) -> Path:
    folder = home / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"quality-{report.task.replace('/', '_')}-{report.reference.key}-{report.candidate.key}.html"
    page.write_text(render_document(quality_document(report)), encoding="utf-8")
    return page
