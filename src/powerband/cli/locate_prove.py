"""``powerband locate --prove``: the subject of a bisection from the command line."""

import argparse
import os
import sys

from powerband.cli.command_line import command_line
from powerband.cli.options import read_workload
from powerband.engines.base import get_engine
from powerband.engines.openai import KEY_VARIABLE
from powerband.probes.http import base_url
from powerband.prove import Subject, prove
from powerband.records.config import parse_settings
from powerband.records.errors import RequestError
from powerband.records.finding import Diagnosis
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.slo import Slo
from powerband.records.units import parse_duration
from powerband.stores.run_dir import new_run_id

_TRAFFIC = "in=256,out=64,concurrency=4"
_WINDOW = "8s"


def prove_source(
    args: argparse.Namespace, *, url: bool, model: ModelSpec | None, device: DeviceSpec | None, slo: Slo | None
) -> Diagnosis:
    """Bisect the server at ``args.source``, or an engine started with that model; raises what prove raises."""
    name = new_run_id("prove")
    window_s = parse_duration(args.watch or _WINDOW)
    folder = args.home / "runs"
    tell = _quiet if args.quiet else _say
    command = command_line()
    workload = read_workload(args, default=_TRAFFIC).first(window_s)
    engine = get_engine("openai" if url else args.engine or "llamacpp")
    if url and args.engine:
        raise RequestError("--engine is for a model to start", hint="a server at an address is tested as it runs")
    if url and args.api_key:
        os.environ[KEY_VARIABLE] = args.api_key  # where the adapter looks for it, so that it gets into no journal
    settings = [f"url={base_url(args.source)}"] if url else args.set
    knobs = parse_settings(settings, engine.knobs())
    config = engine.naive("" if url else args.source, workload).replace(**knobs)
    subject = Subject(
        config=config,
        workload=workload,
        folder=folder,
        name=name,
        command=command,
        cut_s=window_s if workload.request_rate_per_s is None else 2 * window_s + 5,
        engine=engine,
        fixed=frozenset(knobs),
        model=model,
        device=device,
        slo=slo,
        tell=tell,
    )
    return prove(subject)


def _say(line: str) -> None:
    sys.stderr.write(f"testing {line}\n")
    sys.stderr.flush()


def _quiet(line: str) -> None:
    pass
