"""Options that several commands share, and how their text becomes records."""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from powerband.records.errors import RequestError
from powerband.records.slo import parse_slo
from powerband.records.workload import Workload
from powerband.report.width import PIPE_WIDTH

HOME = ".powerband"


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document to stdout and nothing else there")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def add_home(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", type=Path, default=Path(HOME), help=f"where the journal lives (default ./{HOME})")


def add_engine(parser: argparse.ArgumentParser, *, default: str | None = None, several: bool = False) -> None:
    choice = "; several to choose from: vllm,llamacpp=FILE.gguf" if several else ""
    parser.add_argument(
        "--engine", default=default, help=f"vllm, llamacpp, transformers ...; doctor lists them all{choice}"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an engine knob, repeatable")


def add_device(parser: argparse.ArgumentParser, *, several: bool = True) -> None:
    parser.add_argument("--device", default="auto", help="catalogue name, auto, or a TOML file (default auto)")
    if several:
        parser.add_argument("--count", type=int, default=1, help="how many of them (default 1)")


def add_seed(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument("--seed", type=_seed, default=0, help="seed of everything random (default 0)")


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise RequestError(f"--seed {text!r} is no seed", hint="write a whole number of at least 0, such as --seed 7")
    return int(text)


def add_traffic(parser: argparse.ArgumentParser, *, auto_rate: bool = False) -> None:
    """The options that build_workload in load/traffic.py reads; ``auto_rate`` where the machine may set the rate."""
    group = parser.add_argument_group("traffic")
    group.add_argument(
        "--traffic", help="a trace file (Azure CSV, own JSONL ...) or a spec: in=512,out=128,concurrency=8"
    )
    group.add_argument("--requests", type=int, help="at most this many requests")
    group.add_argument("--scale-lengths", type=float, metavar="X", help="multiply prompt and answer lengths")
    group.add_argument("--scale-outputs", type=float, metavar="X", help="multiply answer lengths by this instead")
    auto = (
        ", or auto: 0.9 of what one request at a time can serve, or knee: just beyond what the naive settings serve "
        "within the SLO"
        if auto_rate
        else ""
    )
    group.add_argument(
        "--scale-rate", type=str if auto_rate else float, metavar="X", help=f"multiply the arrival rate{auto}"
    )
    add_seed(group)
    group.add_argument("--slo", help="latency promise: ttft=500ms,tpot=50ms,e2e=5s,attainment=0.95")


def check_price(price: float) -> float:
    """The price of a card for an hour, in any currency."""
    if not 0 < price <= 1e9:
        raise RequestError(f"--price {price} is not possible", hint="accepted: a price above 0, such as 2.5")
    return price


def check_traffic(args: argparse.Namespace) -> None:
    """Refuse what add_traffic's options cannot mean, in a command that may go on without traffic or promise."""
    from powerband.load.scaling import check_scaling

    check_scaling(args.requests, args.scale_lengths, args.scale_outputs, args.scale_rate)
    if args.slo is not None:
        parse_slo(args.slo)


def read_workload(args: argparse.Namespace, *, default: str | None = None, requests: int | None = None) -> Workload:
    """What the options of add_traffic say; ``default`` traffic and number of ``requests`` where none was typed."""
    from powerband.load.traffic import build_workload  # numpy takes a third of a short command's time

    return build_workload(
        default if args.traffic is None else args.traffic,
        requests=requests if args.requests is None else args.requests,
        scale_lengths=args.scale_lengths,
        scale_outputs=args.scale_outputs,
        scale_rate=args.scale_rate,
        seed=args.seed,
    )


def print_json(document: object) -> None:
    """One JSON document on stdout."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def screen_width() -> int:
    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns if sys.stdout.isatty() else PIPE_WIDTH


def terminal() -> dict[str, Any]:
    """Width and colour for the text renderers: plain where stdout is no terminal, NO_COLOR is set or TERM is dumb."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return {"width": screen_width(), "color": sys.stdout.isatty() and not plain}
