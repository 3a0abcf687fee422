"""powerband calibrate: a few minutes of self-measurement, so that simulate and tune know this machine's step time."""

import argparse
from typing import Any

from powerband.cli import options
from powerband.cli.command_line import command_line
from powerband.records.config import EngineConfig, parse_settings
from powerband.records.errors import MachineError, RequestError, unknown_name
from powerband.records.units import parse_duration, percent

_FIGURES = ("tpot_p50_s", "ttft_p50_s", "e2e_p50_s", "output_tokens_per_s")
_BATCHES, _PROMPTS, _CONTEXT = (1, 4, 16, 64), (128, 1024), 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder with config.json, a .gguf file, or a hub id")
    options.add_engine(parser, default="llamacpp")
    options.add_device(parser, several=False)
    parser.add_argument("--budget", default="5m", help="time for all its loads (default 5m)")
    parser.add_argument("--context", type=int, default=2048, help="longest prompt and answer to measure (default 2048)")
    options.add_seed(parser)
    options.add_home(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where the held-out load was missed by more than its interval says."""
    from powerband.calibration import CHECK, calibrate
    from powerband.cli.progress import Narrator
    from powerband.cli.sessions import held
    from powerband.engines.base import get_engine
    from powerband.probes.checkpoint import read_model
    from powerband.probes.device import read_device
    from powerband.simulate.calibrate import fit_step_time
    from powerband.simulate.scheduler import MODELLED, limits_of
    from powerband.simulate.step_time import predict_from_datasheet
    from powerband.simulate.what_if import what_if
    from powerband.stores.sqlite import Journal

    engine, budget_s = get_engine(args.engine), parse_duration(args.budget)
    if args.engine not in MODELLED:
        raise unknown_name("engine to calibrate", args.engine, MODELLED)
    model, device = (read_model(args.model), read_device(args.device)) if engine.loads_model else (None, None)
    config = _config(args, engine)
    limits = limits_of(config)
    journal = Journal(args.home)
    command = command_line()
    session = journal.begin("calibrate", command)
    narrator = Narrator(quiet=args.quiet)
    narrator.say(f"session {session.session_id} in {args.home}")
    with held(journal, session):
        runs, notes = calibrate(
            engine,
            config,
            limits,
            longest_tokens=min(args.context, limits.slot_tokens or args.context),
            store=journal,
            session_id=session.session_id,
            command=command,
            budget_s=budget_s,
            seed=args.seed,
            say=narrator.say,
        )
        seen = [found for name, found in runs.items() if name != CHECK]
        if not seen:
            raise MachineError(f"no usable run: {'; '.join(notes)}", hint="raise --budget, or end other work")
    step = fit_step_time(seen, predict_from_datasheet(model, device, config))
    check = runs.get(CHECK)
    expected = what_if(config, check.workload, step, deadline_s=budget_s) if check else None
    document = _document(session.session_id, step, check, expected, notes)
    if args.json:
        options.print_json(document)
    else:
        options.print_text(_screen(document, args))
    return 0 if all(one["held"] for one in document["check"]) else 1


def _config(args: argparse.Namespace, engine: Any) -> EngineConfig:
    """The engine's naive settings with several slots and what the user fixed."""
    from powerband.load.traffic import build_workload

    longest = build_workload(f"in={max(args.context - 64, 1)},out=64,concurrency=1", requests=1, seed=0)
    fixed = parse_settings(args.set, engine.knobs())
    naive = engine.naive(args.model, longest).replace(**{**_batching(args.engine), **fixed})
    config: EngineConfig = engine.complete(naive, longest, frozenset(fixed))
    reason = engine.refuses(config, longest)
    if reason is not None:
        raise RequestError(f"cannot calibrate: {reason}", hint="lower --context, or change the knob it names")
    return config


def _batching(engine: str) -> dict[str, int]:
    """Slots enough to see how a step grows with the batch, where the user sets none."""
    return {"llamacpp": {"n_parallel": 8}, "fake": {"slots": 8}}.get(engine, {})


def _document(session_id: str, step: Any, check: Any, expected: Any, notes: list[str]) -> dict[str, Any]:
    from powerband.simulate.step_time import FACTORS
    from powerband.simulate.what_if import figures_of

    spread = [max(row[place], 0.0) ** 0.5 for place, row in enumerate(step.covariance)]
    found = []
    if check is not None:
        measured, now = figures_of(check.metrics()), figures_of(expected.metrics)
        for name in (name for name in _FIGURES if name in measured and name in now):
            interval = expected.intervals[name]
            found.append(
                {
                    "name": name,
                    "measured": measured[name],
                    "predicted": now[name],
                    "interval": interval,
                    "error": now[name] / measured[name] - 1 if measured[name] else None,
                    "held": interval.low <= measured[name] <= interval.high,
                }
            )
    return {
        "session_id": session_id,
        "config": step.config,
        "runs": step.runs,
        "factors": [
            {"name": name, "factor": factor, "standard_deviation": sd}
            for name, factor, sd in zip(FACTORS, step.factors, spread, strict=True)
        ],
        "residual": step.residual,
        "steps": [*_decode_steps(step), *_prompt_steps(step)],
        "check": found,
        "notes": notes,
    }


def _decode_steps(step: Any) -> list[dict[str, Any]]:
    rows = []
    for batch in _BATCHES:
        parts = step.parts(sequences=batch, context_tokens=batch * _CONTEXT, prefill_tokens=0, pairs=0.0, sampled=batch)
        name = f"decode, {batch} sequence{'s' if batch > 1 else ''} of {_CONTEXT} tokens"
        rows.append(_row(name, step.seconds(sequences=batch, context_tokens=batch * _CONTEXT), step.spread(parts)))
    return rows


def _prompt_steps(step: Any) -> list[dict[str, Any]]:
    rows = []
    for prompt in _PROMPTS:
        parts = step.parts(
            sequences=0, context_tokens=0.0, prefill_tokens=prompt, pairs=prompt * (prompt + 1) / 2, sampled=1
        )
        seconds = step.seconds(sequences=0, prefill_tokens=prompt)
        rows.append(_row(f"prompt of {prompt} tokens", seconds, step.spread(parts)))
    return rows


def _row(name: str, seconds: float, spread: float) -> dict[str, Any]:
    from powerband.records.counting import NORMAL_90

    return {"name": name, "seconds": seconds, "spread_90": NORMAL_90 * spread}


def _screen(document: dict[str, Any], args: argparse.Namespace) -> str:
    lines = [f"step time from {len(document['runs'])} runs of session {document['session_id']}"]
    lines += [
        f"  {one['name']:<36}{one['seconds'] * 1e3:9.2f} ms ± {percent(one['spread_90'])}" for one in document["steps"]
    ]
    for one in document["check"]:
        unit, name = (1.0, one["name"]) if one["name"].endswith("per_s") else (1e3, one["name"][:-2] + "_ms")
        low, high = one["interval"].low * unit, one["interval"].high * unit
        lines.append(
            f"  held out: {name:<24}measured {one['measured'] * unit:.4g}, predicted {one['predicted'] * unit:.4g} "
            f"[{low:.4g}, {high:.4g}]{'' if one['held'] else '  MISSED'}"
        )
    lines += [f"  {note}" for note in document["notes"]]
    lines.append(f"use it: powerband simulate {args.model} --calibrate {document['session_id']} ...")
    return "\n".join(lines)
