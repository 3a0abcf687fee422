"""``powerband account``: does this model fit, with how many users, and what to do if not."""

import argparse

import msgspec

from powerband.account.knobs import MEMORY_KNOBS
from powerband.account.ledger import compute_ledger
from powerband.cli.options import add_device, add_engine, add_home, add_output, add_traffic, print_json, print_text
from powerband.engines.base import BUILT_IN, get_engine
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig, Knob, parse_settings
from powerband.records.memory import MemoryLedger
from powerband.records.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a folder with config.json, or a .gguf file")
    add_device(parser)
    add_engine(parser)
    add_traffic(parser)
    add_home(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    model = read_model(arguments.model)
    device = read_device(arguments.device)
    engine = arguments.engine or ("llamacpp" if model.quantisation == "gguf" else "vllm")
    knobs = parse_settings(arguments.set, memory_knobs(engine))
    config = EngineConfig(engine=engine, model=arguments.model, knobs=knobs)
    ledger = compute_ledger(model, device, config, count=arguments.count)
    if arguments.json:
        print_json(document(ledger, config, arguments.count))
    else:
        print_text(screen(ledger))
    return 0 if ledger.fits else 1


def memory_knobs(engine: str) -> tuple[Knob, ...]:
    """An engine's knobs: the adapter's own where there is one, and those that only memory cares about."""
    known = MEMORY_KNOBS.get(engine, ())
    own = get_engine(engine).knobs() if engine in BUILT_IN else ()
    names = {knob.name for knob in own}
    return (*own, *(knob for knob in known if knob.name not in names))


def document(ledger: MemoryLedger, config: EngineConfig, count: int) -> dict[str, object]:
    return {
        "model": ledger.model,
        "device": ledger.device,
        "count": count,
        "engine": config.engine,
        "config": config.knobs,
        "ledger": [msgspec.to_builtins(line) for line in ledger.lines],
        "capacity": ledger.capacity,
        "fits": ledger.fits,
        "remedies": ledger.remedies,
        "assumed": ledger.assumed,
    }


def screen(ledger: MemoryLedger) -> str:
    rows = [f"{ledger.model} on {ledger.device}: {'fits' if ledger.fits else 'does not fit'}"]
    rows += [f"  {line.name:<12} {format_bytes(line.bytes):>12}  {line.basis:<9} {line.why}" for line in ledger.lines]
    cap = ledger.capacity
    rows.append(
        f"  {cap.kv_tokens} tokens of cache, {cap.kv_bytes_per_token} bytes each; {cap.max_concurrency:.2f} at full length"
    )
    return "\n".join(rows)
