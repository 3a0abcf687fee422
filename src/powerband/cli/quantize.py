"""``powerband quantize``: which formats are possible and what they bring; then making one, with a card of how."""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from powerband.cli import options
from powerband.cli.command_line import command_line
from powerband.cli.knobs import knobs_of
from powerband.records.config import EngineConfig, parse_settings
from powerband.records.errors import MachineError, RequestError, unknown_name
from powerband.records.units import format_bytes, format_duration, parse_bytes

ANY = "any"
_ENGINES = ("vllm", "sglang", "tgi", "tensorrt-llm", "transformers", "llamacpp", "mlx", ANY)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder with config.json, a .gguf file, or a hub id")
    parser.add_argument("--plan", action="store_true", help="only say what is possible and brings (without --method)")
    parser.add_argument(
        "--method",
        help="gptq, awq, autoround, smoothquant, w8a8, fp8, fp8-block, nvfp4, int8, int4, bnb-int8, bnb-nf4, mlx4, mlx8"
        " or gguf:Q4_K_M; options after a colon: gptq:group=64",
    )
    parser.add_argument("--engine", help="what will serve it: " + ", ".join(_ENGINES))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an engine knob, repeatable")
    parser.add_argument("--engine-version", default="", metavar="V", help="such as 0.11.0 (default: the newest known)")
    options.add_device(parser)
    parser.add_argument(
        "--task", choices=("chat", "summarise", "code", "maths"), default="chat", help="what the model is used for"
    )
    work = parser.add_argument_group("work")
    work.add_argument("--out", type=Path, metavar="DIR", help="where the model appears once it is whole")
    work.add_argument(
        "--calibration", type=Path, metavar="FILE", help="text to calibrate with: JSONL, a log, plain text"
    )
    work.add_argument("--reference-text", type=Path, metavar="FILE", help="text of the real traffic, to compare with")
    work.add_argument("--samples", type=int, default=128, help="samples taken of it (default 128)")
    work.add_argument("--sequence-tokens", type=int, default=512, metavar="N", help="tokens of a sample (default 512)")
    work.add_argument("--tool", help="which tool, where several do it")
    work.add_argument("--python", default=sys.executable, metavar="PATH", help="the interpreter that has the tool")
    work.add_argument("--threads", type=int, default=0, help="of the tool (default: its own choice)")
    work.add_argument("--memory-limit", metavar="SIZE", help="end the tool where it takes more, such as 12GiB")
    options.add_traffic(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where nothing asked for can run on that engine and card."""
    from powerband.probes.checkpoint import read_model
    from powerband.probes.device import read_device
    from powerband.quantize.methods import parse_method, planned_methods
    from powerband.quantize.plan import Setting, make_plan

    args.plan = args.plan or args.method is None
    _check(args)
    methods = [args.method] if args.method else planned_methods()
    for name in methods:
        parse_method(name, args.tool if args.method else None)
    spec, device = read_model(args.model), read_device(args.device)
    if args.engine is None:  # a plan alone: as account chooses
        args.engine = "llamacpp" if spec.quantisation == "gguf" else "vllm"
    traffic = _traffic(args)
    setting = Setting(
        model=spec, device=device, config=_config(args, traffic), count=args.count, traffic=traffic,
        engine_version=args.engine_version, task=args.task,
    )  # fmt: skip
    if args.plan:
        plan = make_plan(setting, methods, args.tool if args.method else None)
        return _show_plan(args, setting, plan)
    return _quantise(args, setting)


def _check(args: argparse.Namespace) -> None:
    options.check_traffic(args)
    if args.engine is None and not args.plan:
        raise RequestError("no engine was named", hint="say what will serve it: --engine vllm (or --engine any)")
    if args.engine is not None and args.engine not in _ENGINES:
        raise unknown_name("engine", args.engine, _ENGINES)
    if not args.plan and args.out is None:
        raise RequestError("no place for the model", hint="--out DIR")
    if args.out is not None and args.method is None:
        raise RequestError("no method was named", hint="--plan says which are possible; then --method gptq --out DIR")
    if not args.plan and shutil.which(args.python) is None:
        raise RequestError(f"no interpreter at {args.python}", hint="--python PATH of the one that has the tool")
    for name, low, high in (("samples", 1, 100_000), ("sequence_tokens", 16, 1_000_000), ("threads", 0, 4096)):
        value = getattr(args, name)
        if not low <= value <= high:
            raise RequestError(
                f"--{name.replace('_', '-')} {value} is not possible", hint=f"accepted: {low} to {high:,}"
            )


def _config(args: argparse.Namespace, traffic: Any) -> EngineConfig:
    if args.engine in (ANY, "mlx"):
        if args.set:
            raise RequestError(f"--engine {args.engine} has no knobs here", hint="leave --set out")
        return EngineConfig(engine=args.engine, model=args.model)
    knobs = parse_settings(args.set, knobs_of(args.engine))
    config = EngineConfig(engine=args.engine, model=args.model, knobs=knobs)
    if args.engine == "llamacpp" and traffic is not None:
        slots = int(knobs.get("n_parallel", min(traffic.concurrency or 8, 32)))
        room = -(-traffic.longest_tokens // 256) * 256 * slots
        config = config.replace(**{"n_parallel": slots, "n_ctx": room, **knobs})
    return config


def _traffic(args: argparse.Namespace) -> Any:
    return None if args.traffic is None else options.read_workload(args, requests=200)


def _show_plan(args: argparse.Namespace, setting: Any, plan: Any) -> int:
    from powerband.cli.quantize_screen import draw_plan

    calibration = _take(args)[1] if args.calibration is not None else None
    if args.json:
        options.print_json(
            {
                "model": setting.model.name,
                "device": setting.device.name,
                "count": setting.count,
                "engine": setting.config.engine,
                "config": setting.config.knobs,
                "task": setting.task,
                "traffic": setting.traffic.source if setting.traffic else None,
                "table": plan.table_version,
                "stored": plan.stored,
                "as_it_is": plan.base,
                "methods": plan.rows,
                "cache": plan.cache,
                "calibration": calibration,
            }
        )
    else:
        options.print_text(draw_plan(setting, plan))
        _say(args, *_about(calibration))
    return 0 if any(row.support.possible for row in plan.rows) else 1


def _quantise(args: argparse.Namespace, setting: Any) -> int:
    from powerband.cli.quantize_screen import draw_card
    from powerband.quantize.methods import parse_method
    from powerband.quantize.plan import ask
    from powerband.quantize.run import Order, check_place, quantise

    job = parse_method(args.method, args.tool)
    support = ask(setting, job)
    if support.answer == "refused":
        near = f"nearest possible: {', '.join(support.instead)}" if support.instead else "see --plan"
        raise RequestError(
            f"{job.asked} for {setting.config.engine} on {setting.device.name}: {support.why}", hint=near
        )
    samples, calibration = _calibration(args, job)
    expected = _expected(args, setting, job, calibration)
    check_place(args.out, expected)
    limit = parse_bytes(args.memory_limit) if args.memory_limit else None
    _say(args, *_before(support, calibration, expected))
    _check_memory(expected, limit)
    order = Order(
        model=args.model, spec=setting.model, out=args.out, python=args.python, expected=expected,
        command=command_line(), threads=args.threads, sequence_tokens=args.sequence_tokens,
        memory_limit_bytes=limit,
    )  # fmt: skip
    card = quantise(job, order, samples, calibration, _narrator(args, expected.seconds))
    if args.json:
        options.print_json({"out": str(args.out), "support": support, "card": card})
    else:
        options.print_text(draw_card(card, str(args.out), support))
    return 0


def _calibration(args: argparse.Namespace, job: Any) -> tuple[list[Any], Any]:
    if args.calibration is None:
        if job.method.calibration == "wanted":
            raise RequestError(
                f"{job.asked} looks at text to choose its scales, and none was given",
                hint="--calibration FILE: some hundred prompts of your own traffic",
            )
        return [], None
    return _take(args)


def _take(args: argparse.Namespace) -> tuple[list[Any], Any]:
    from powerband.quantize.calibration import take_calibration

    return take_calibration(
        args.calibration, samples=args.samples, sequence_tokens=args.sequence_tokens, seed=args.seed,
        reference=args.reference_text,
    )  # fmt: skip


def _expected(args: argparse.Namespace, setting: Any, job: Any, calibration: Any) -> Any:
    from powerband.probes.host import usable_cores
    from powerband.quantize.effort import estimate_effort

    return estimate_effort(
        job, setting.model, cores=args.threads or usable_cores(),
        calibration_tokens=calibration.tokens if calibration else 0,
        samples=calibration.samples if calibration else 0, from_folder=Path(args.model).is_dir(),
    )  # fmt: skip


def _check_memory(expected: Any, limit: int | None) -> None:
    import psutil

    from powerband.quantize.run import LESS_MEMORY

    available = psutil.virtual_memory().available
    room = available if limit is None else min(limit, available)
    if expected.memory_bytes > 1.5 * room:
        raise MachineError(
            f"memory: about {format_bytes(expected.memory_bytes)} wanted, {format_bytes(room)} to be had",
            hint=LESS_MEMORY,
        )


def _before(support: Any, calibration: Any, expected: Any) -> list[str]:
    lines = [f"warning: {caveat.text} ({caveat.source})" for caveat in support.caveats]
    if support.answer != "runs":
        lines.insert(0, f"warning: {support.engine}: {support.why}")
    lines += _about(calibration)
    span = f"{format_duration(expected.interval_s.low)} to {format_duration(expected.interval_s.high)}"
    lines.append(
        f"expected: {format_duration(expected.seconds)} ({span}), {format_bytes(expected.memory_bytes)} of memory,"
        f" {format_bytes(expected.output_bytes)} on disk"
    )
    return lines


def _about(calibration: Any) -> list[str]:
    if calibration is None:
        return []
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(calibration.kinds.items()))
    said = f"calibration: {calibration.samples} samples ({kinds}), about {calibration.tokens:,} tokens"
    return [said, *(f"warning: {text}" for text in calibration.warnings)]


def _narrator(args: argparse.Namespace, expected_s: float) -> Any:
    """Progress on stderr: a line a stage, and on a terminal how far it is meanwhile."""
    live = sys.stderr.isatty()
    seen: list[str] = []

    def tell(now: Any) -> None:
        if args.quiet:
            return
        count = f" {now.done}/{now.total}" if now.total else ""
        if now.stage not in seen:
            seen.append(now.stage)
            sys.stderr.write(("\r\x1b[2K" if live else "") + f"{now.stage} ...\n")
        if live:
            left = max(expected_s - now.elapsed_s, 0.0)
            text = f"  {now.stage}{count}, {format_duration(now.elapsed_s)}, about {format_duration(left)} left,"
            sys.stderr.write(f"\r\x1b[2K{text} {format_bytes(now.rss_bytes)}"[:118])
        sys.stderr.flush()

    return tell


def _say(args: argparse.Namespace, *lines: str) -> None:
    if not args.quiet:
        sys.stderr.writelines(line + "\n" for line in lines)
        sys.stderr.flush()
