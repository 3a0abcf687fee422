"""``powerband account``: does this model fit, with how many users, and what to do if not."""

import argparse
from pathlib import Path

import msgspec

from powerband.account.compare import compare_devices
from powerband.account.knobs import MEMORY_KNOBS
from powerband.account.ledger import compute_ledger
from powerband.account.reconcile import Reconciliation, combined, reconcile
from powerband.cli.account_screen import draw_fits, draw_ledger, draw_reconciliation
from powerband.cli.knobs import knobs_of
from powerband.cli.options import (
    add_device,
    add_engine,
    add_home,
    add_output,
    add_traffic,
    check_price,
    check_traffic,
    print_json,
    print_text,
    read_workload,
    screen_width,
)
from powerband.probes.checkpoint import read_model
from powerband.probes.device import device_catalogue, read_device
from powerband.probes.live_memory import read_live_memory
from powerband.probes.startup_log import StartupLog, read_startup_log
from powerband.records.config import EngineConfig, Value, parse_settings
from powerband.records.errors import RequestError, unknown_name
from powerband.records.memory import MemoryLedger, Residual
from powerband.records.model import ModelSpec
from powerband.records.workload import Workload
from powerband.stores.residuals import find_residual, save_residual


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a folder with config.json, a .gguf file, or a hub id")
    add_device(parser)
    add_engine(parser)
    parser.add_argument("--engine-version", default="", metavar="V", help="such as 0.11.0 (default: the newest known)")
    parser.add_argument("--compare", action="store_true", help="which cards it fits on, smallest first")
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="CARD=PER_HOUR",
        help="price of one card, for --compare; repeatable",
    )
    parser.add_argument("--measured", metavar="LOG|URL", help="a startup log or a live engine: compare, and remember")
    add_traffic(parser)
    add_home(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    check_traffic(arguments)
    prices = read_prices(arguments.price)
    if prices and not arguments.compare:
        raise RequestError("--price belongs to --compare", hint="add --compare, or ask simulate for the cost of tokens")
    model = read_model(arguments.model)
    log = read_measured(arguments.measured) if arguments.measured else None
    engine = choose_engine(arguments.engine, model, log)
    config = EngineConfig(engine=engine, model=arguments.model, knobs=read_knobs(engine, arguments.set, log))
    traffic = read_traffic(arguments)
    if arguments.compare:
        return run_compare(arguments, model, config, traffic, prices)
    device = read_device(arguments.device)
    version = arguments.engine_version or (log.version if log else "")
    residual = find_residual(arguments.home, device=device.name, engine=engine, version=version, family=model.family)

    def predict(known: Residual | None) -> MemoryLedger:
        return compute_ledger(
            model, device, config, count=arguments.count, traffic=traffic, version=version, residual=known
        )

    ledger = predict(residual)
    document = describe(ledger, model, config, arguments.count)
    if log is None:
        users = traffic.concurrency if traffic else None
        show(arguments, document, draw_ledger(ledger, model, engine, users, width=screen_width()))
        serves = traffic is None or (ledger.capacity.users_at_traffic or 0.0) >= 1
        return 0 if ledger.fits and serves else 1
    found = reconcile(ledger, log.report, engine=engine, version=version, family=model.family, source=log.source)
    keep = combined(residual, found.residual)
    after = predict(keep)
    saved = save_residual(arguments.home, keep)
    document["reconciled"] = describe_reconciliation(found, after)
    show(arguments, document, draw_reconciliation(found, after, str(saved)))
    return 0


def run_compare(
    arguments: argparse.Namespace,
    model: ModelSpec,
    config: EngineConfig,
    traffic: Workload | None,
    prices: dict[str, float],
) -> int:
    fits = compare_devices(
        model,
        device_catalogue().values(),
        config,
        traffic=traffic,
        version=arguments.engine_version,
        prices=prices,
    )
    document = {"model": model.name, "engine": config.engine, "config": config.knobs, "devices": fits}
    text = draw_fits(fits, model.name, config.engine, traffic=traffic.source if traffic else "", width=screen_width())
    show(arguments, document, text)
    return 0 if fits else 1


def show(arguments: argparse.Namespace, document: object, text: str) -> None:
    if arguments.json:
        print_json(document)
    else:
        print_text(text)


def read_measured(place: str) -> StartupLog:
    """What a running engine tells where ``place`` is an address, else its startup log."""
    return read_live_memory(place) if "://" in place else read_startup_log(Path(place))


def choose_engine(asked: str | None, model: ModelSpec, log: StartupLog | None) -> str:
    if asked and asked not in MEMORY_KNOBS:
        raise unknown_name("engine for the memory ledger", asked, MEMORY_KNOBS)
    if log is not None and asked and asked != log.engine:
        raise RequestError(f"the log is of {log.engine}, not {asked}", hint=f"leave --engine out, or name {log.engine}")
    if log is not None:
        return log.engine
    return asked or ("llamacpp" if model.quantisation == "gguf" else "vllm")


def read_knobs(engine: str, pairs: list[str], log: StartupLog | None) -> dict[str, Value]:
    """The knobs of --set, over those that a startup log names."""
    known = knobs_of(engine)
    names = {knob.name for knob in known}
    logged = {name: value for name, value in log.settings.items() if name in names} if log else {}
    return {**logged, **parse_settings(pairs, known)}


def read_traffic(arguments: argparse.Namespace) -> Workload | None:
    """The traffic asked for; None where none was, since a made-up one would decide the answer."""
    return None if arguments.traffic is None else read_workload(arguments, requests=2000)


def read_prices(pairs: list[str]) -> dict[str, float]:
    prices: dict[str, float] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        try:
            price, card = float(text), read_device(name).name
        except ValueError:
            equals = ""
        if not equals:
            raise RequestError(f"cannot read --price {pair!r}", hint="write card=number, such as --price l4=0.70")
        if card in prices:
            raise RequestError(f"--price names {card} twice", hint="give one price of each card")
        prices[card] = check_price(price)
    return prices


def describe(ledger: MemoryLedger, model: ModelSpec, config: EngineConfig, count: int) -> dict[str, object]:
    return {
        "model": ledger.model,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "weight_dtype": model.weight_dtype,
        "device": ledger.device,
        "count": count,
        "ranks": ledger.ranks,
        "memory_bytes": ledger.memory_bytes,
        "engine": config.engine,
        "engine_version": ledger.engine_version,
        "config": config.knobs,
        "ledger": ledger.lines,
        "capacity": ledger.capacity,
        "fits": ledger.fits,
        "shortage": ledger.shortage,
        "remedies": ledger.remedies,
        "reported": ledger.reported,
        "assumed": ledger.assumed,
    }


def describe_reconciliation(found: Reconciliation, after: MemoryLedger) -> dict[str, object]:
    lines = [{**msgspec.to_builtins(line), "difference": line.difference, "share": line.share} for line in found.lines]
    return {
        "lines": lines,
        "unexplained_bytes": found.unexplained_bytes,
        "not_reported": found.silent,
        "residual": found.residual,
        "after": after.reported,
    }
