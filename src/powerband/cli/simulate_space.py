"""The configs that simulate is asked for: settings, sweeps over knobs and engines, and cards to share the work."""

import argparse
import itertools
import math
from typing import Any

from powerband.cli.knobs import knobs_of
from powerband.engines.base import get_engine
from powerband.records.config import TENSOR_KNOB, EngineConfig, Knob, over_cards, parse_settings, tensor_parallel
from powerband.records.errors import RequestError, unknown_name
from powerband.records.workload import RequestSpec, Workload

MOST_SWEPT = 500
_SHORT = Workload(requests=(RequestSpec(offset_ns=0, input_tokens=1, output_tokens=1),), source="any")
_NOT_SIMULATED = ("pipeline_parallel_size", "pp_size", "data_parallel_size", "dp_size")


def configs_of(args: argparse.Namespace) -> list[EngineConfig]:
    """Every combination of the swept values. With ``--sweep engine=A,B`` each engine takes the settings and sweeps that
    it knows; one that no engine knows is an error.
    """
    engines, sweeps = _engines(args)
    parts: list[tuple[EngineConfig, list[list[dict[str, Any]]]]] = []
    for engine in engines:
        others = [knobs_of(other) for other in engines if other != engine]
        knobs = knobs_of(engine)
        settings = parse_settings(_known(args.set, knobs, others), knobs)
        swept = [_swept(text, knobs) for text in _known(sweeps, knobs, others)]
        parts.append((EngineConfig(engine=engine, model=args.model, knobs=settings), swept))
    total = sum(math.prod(len(values) for values in swept) for _, swept in parts)
    if total > MOST_SWEPT:
        raise RequestError(f"--sweep asks for {total} configs", hint=f"accepted: up to {MOST_SWEPT}")
    return [
        base.replace(**dict(pair for values in combination for pair in values.items()))
        for base, swept in parts
        for combination in itertools.product(*swept)
    ]


def simulated_over(config: EngineConfig, count: int) -> EngineConfig:
    """``config`` on ``count`` cards; RequestError also for ways to share them of which no step time is known."""
    for name in _NOT_SIMULATED:
        if int(config.knobs.get(name, 1) or 1) > 1:
            raise RequestError(f"{name}={config.knobs[name]} is not simulated", hint="replicas are: --replicas N")
    return over_cards(config, count, instead=f"engines side by side: --replicas {count}")


def replicas_of(config: EngineConfig, args: argparse.Namespace) -> int:
    """Engines behind the router: those that were asked for, each as often as its cards go into --count."""
    copies: int = args.replicas * max(1, args.count // tensor_parallel(config))
    return copies


def refusal_of(config: EngineConfig) -> str | None:
    """The rule of the engine's own that a config breaks, in words; how many cards are in this machine is no matter.

    Which requests are too long the simulation says.
    """
    single = config.replace(**dict.fromkeys(set(TENSOR_KNOB.values()) & config.knobs.keys(), 1))
    return get_engine(config.engine).refuses(single, _SHORT)


def to_be_gated(config: EngineConfig) -> list[str]:
    """Knobs that alter the answers, at values other than the engine's own: nothing is advised with them ungated."""
    return [
        knob.name
        for knob in knobs_of(config.engine)
        if knob.numerics and config.knobs.get(knob.name, knob.naive) != knob.naive
    ]


def _engines(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The engines, and the sweeps over knobs."""
    from powerband.simulate.scheduler import MODELLED

    named = [text for text in args.sweep if text.partition("=")[0].strip() == "engine"]
    sweeps = [text for text in args.sweep if text not in named]
    words = [word.strip() for text in named for word in text.partition("=")[2].split(",")]
    engines = list(dict.fromkeys(word for word in words if word)) or [args.engine]
    for engine in engines:
        if engine not in MODELLED:
            raise unknown_name("engine to simulate", engine, MODELLED)
    return engines, sweeps


def _known(pairs: list[str], knobs: tuple[Knob, ...], others: list[tuple[Knob, ...]]) -> list[str]:
    """Without those that another engine of the sweep knows and this one does not."""
    mine = {knob.name for knob in knobs}
    theirs = {knob.name for other in others for knob in other}
    return [pair for pair in pairs if _name(pair) in mine or _name(pair) not in theirs]


def _name(pair: str) -> str:
    return pair.partition("=")[0].strip().lstrip("-").replace("-", "_")


def _swept(text: str, knobs: tuple[Knob, ...]) -> list[dict[str, Any]]:
    name, equals, values = text.partition("=")
    words = [word for word in values.split(",") if word.strip()]
    if not equals or not words:
        raise RequestError(f"cannot read --sweep {text!r}", hint="write key=a,b,c, such as n_parallel=1,4,16")
    return [parse_settings([f"{name}={word}"], knobs) for word in words]
