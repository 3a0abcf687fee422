"""What powerband simulate says beyond the figures: where a promise breaks, what would keep it, what tokens cost."""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from powerband.cli.options import check_price
from powerband.cli.simulate_space import to_be_gated
from powerband.plan import load_plan
from powerband.probes.device import device_catalogue
from powerband.records.config import EngineConfig, tensor_parallel
from powerband.records.errors import RequestError
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.slo import Slo
from powerband.records.value import Missing
from powerband.records.workload import Workload
from powerband.remedy import Alternative, describe_alternatives, find_alternatives
from powerband.simulate.breaking import MOST, Breaking, find_breaking
from powerband.simulate.scheduler import Speculation
from powerband.simulate.step_time import StepTime
from powerband.simulate.what_if import WhatIf
from powerband.tune.plan import describe_traffic

MOST_REPLICAS = 64
HOUR_S, MILLION = 3600.0, 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("promise and price")
    group.add_argument("--config", type=Path, metavar="PLAN", help="engine, model, settings and promise of a plan file")
    group.add_argument(
        "--breaking", action="store_true", help="how much faster and longer the traffic may become until --slo breaks"
    )
    group.add_argument("--price", type=float, metavar="P", help="of a card for an hour: gives the cost of tokens")
    group.add_argument(
        "--objective",
        choices=("cost", "cards"),
        help="which config of a sweep is best: the least cost of a million tokens, or the fewest cards that keep --slo",
    )
    group.add_argument(
        "--speculate",
        metavar="K,A[,D]",
        help="K guesses a step, each right with chance A; drafting one takes the share D of a step (default 0)",
    )


def fill_in(args: argparse.Namespace) -> None:
    """Take from the plan file what was not typed."""
    args.holds_for = ""
    if args.config is not None:
        plan = load_plan(args.config)
        if args.model is not None or args.engine is not None:
            raise RequestError("--config names model and engine", hint="leave MODEL and --engine out")
        args.model, args.engine, args.holds_for = plan.model, plan.engine, plan.holds_for
        typed = {text.partition("=")[0].strip().lstrip("-").replace("-", "_") for text in args.set}
        args.set = [*(f"{name}={_word(value)}" for name, value in plan.knobs.items() if name not in typed), *args.set]
        args.slo = args.slo or plan.slo or None
    if args.model is None:
        raise RequestError("no MODEL was given", hint="name a .gguf file, a model folder or a hub id, or --config PLAN")
    args.engine = args.engine or ("llamacpp" if args.model.endswith(".gguf") else "vllm")
    if args.breaking and not args.slo:
        raise RequestError("--breaking needs a promise", hint="add --slo ttft=500ms,tpot=50ms")
    if args.objective == "cost" and args.price is None:
        raise RequestError("the cost of tokens needs a price", hint="add --price 2.5, of one card for one hour")
    if args.objective == "cards" and not args.slo:
        raise RequestError("the fewest cards for what?", hint="add --slo ttft=500ms,tpot=50ms")
    if args.price is not None:
        check_price(args.price)


def parse_speculation(text: str | None) -> Speculation | None:
    if text is None:
        return None
    words = text.split(",")
    try:
        guesses, acceptance = int(words[0]), float(words[1])
        share = float(words[2]) if len(words) == 3 else 0.0
        if len(words) > 3 or not 1 <= guesses <= 64 or not 0 <= acceptance <= 1 or not 0 <= share <= 1:
            raise ValueError
    except (ValueError, IndexError):
        hint = "write K,A or K,A,D, such as 3,0.7,0.05: 1 to 64 guesses, shares from 0 to 1"
        raise RequestError(f"cannot read --speculate {text!r}", hint=hint) from None
    return Speculation(draft_tokens=guesses, acceptance=acceptance, draft_share=share)


class Question(NamedTuple):
    """What simulate was asked; ``ask`` simulates a config under some traffic on some replicas, ``replicas`` says on how
    many a config runs."""

    args: argparse.Namespace
    model: ModelSpec
    device: DeviceSpec
    workload: Workload
    slo: Slo | None
    deadline_s: float | None
    step: StepTime
    ask: Callable[[EngineConfig, Workload, int], WhatIf]
    replicas: Callable[[EngineConfig], int]


def collect(question: Question, found: Sequence[WhatIf]) -> dict[str, Any]:
    """The answers that the options ask for, by name; all about the first config but ``costs``, ``cards``, ``best``."""
    args, first = question.args, found[0]
    more: dict[str, Any] = {}
    if args.holds_for:
        more["holds_for"] = {"plan": args.holds_for, "asked": describe_traffic(question.workload)}
    if args.breaking:
        more["breaking"] = find_breaking(
            lambda traffic: bool(question.ask(first.config, traffic, question.replicas(first.config)).holds),
            question.workload,
        )
    if question.slo is not None and len(found) == 1 and first.holds is False:
        more["alternatives"] = _alternatives(question, first)
    if args.price is not None:
        more["costs"] = [
            _cost(one, max(args.count, tensor_parallel(one.config)) * args.replicas, args.price) for one in found
        ]
    if args.objective == "cards":
        more["cards"] = [_cards(question, one) for one in found]
    if args.objective is not None:
        figures = more["costs" if args.objective == "cost" else "cards"]
        more |= _best([None if figure is None else (figure,) for figure in figures], found, args)
    elif len(found) > 1:
        more |= _best([_slowness(one) for one in found], found, args)
    return more


def _slowness(one: WhatIf) -> tuple[float, ...] | None:
    """Least where most is delivered in time, and soonest among equals; None where nothing ran."""
    metrics = one.metrics
    if metrics is None:
        return None
    delivered = metrics.output_tokens_per_s if metrics.goodput_per_s is None else metrics.goodput_per_s
    waits = [math.inf if isinstance(seen, Missing) else seen.p50 for seen in (metrics.tpot_s, metrics.ttft_s)]
    return (-delivered, *waits)


def _best(
    figures: Sequence[tuple[float, ...] | None], found: Sequence[WhatIf], args: argparse.Namespace
) -> dict[str, Any]:
    """The config with the least that leaves the answers as they are; and the least of all, where that is another."""
    usable = sorted((figure, place) for place, figure in enumerate(figures) if _counts(figure, found[place], args))
    ranked = [found[place].config for _, place in usable]
    best = next((config for config in ranked if not to_be_gated(config)), None)
    more: dict[str, Any] = {"best": best and best.knobs, "best_engine": best and best.engine}
    if ranked and ranked[0] is not best:
        more["best_if_gated"] = {"engine": ranked[0].engine, "knobs": ranked[0].knobs, "gate": to_be_gated(ranked[0])}
    return more


def describe(more: dict[str, Any], found: Sequence[WhatIf]) -> list[str]:
    """The answers in words, one line each."""
    lines = []
    if "holds_for" in more:
        plan, asked = more["holds_for"]["plan"], more["holds_for"]["asked"]
        lines.append(f"the plan was made for {plan}; " + ("the same" if plan == asked else f"asked now: {asked}"))
    if "breaking" in more:
        lines.append(_describe_breaking(more["breaking"]))
    if "alternatives" in more:
        lines.append(describe_alternatives(more["alternatives"]))
    for name, unit in (("costs", "a million output tokens"), ("cards", "cards that keep the promise")):
        for one, figure in zip(found, more.get(name, []), strict=False):
            shown = "none do" if figure is None else f"{figure:.4g}"
            lines.append(f"{name_of(one.config, found)}: {shown} {'for ' if name == 'costs' else ''}{unit}")
    return lines


def _words(engine: str, knobs: dict[str, Any]) -> str:
    return " ".join([engine, ", ".join(f"{key}={value}" for key, value in knobs.items()) or "defaults"]).strip()


def _describe_breaking(found: Breaking) -> str:
    def times(name: str, factor: float | None) -> str:
        if factor is None:
            return f"not even a sixteenth of the {name}"
        return f"{'at least ' if factor >= MOST else ''}{factor:.2f} times the {name}"

    parts = [("prompts' length", found.prompts), ("answers' length", found.answers)]
    if found.rate is not None:
        parts.insert(0, ("rate", found.rate))
    return "all else equal the promise holds up to " + ", ".join(times(name, factor) for name, factor in parts)


def _alternatives(question: Question, one: WhatIf) -> list[Alternative]:
    cards = [card for card in device_catalogue().values() if card.kind == "gpu"]
    assert question.slo is not None
    return find_alternatives(
        question.model,
        question.device,
        one.config,
        question.workload,
        question.slo,
        question.step,
        count=tensor_parallel(one.config),
        cards=cards,
        deadline_s=question.deadline_s,
    )


def _cost(one: WhatIf, cards: int, price_per_hour: float) -> float | None:
    """Price of a million output tokens at the simulated speed; None where there are none."""
    speed = one.metrics.output_tokens_per_s if one.metrics is not None else 0.0
    return cards * price_per_hour / HOUR_S / speed * MILLION if speed > 0 else None


def _cards(question: Question, one: WhatIf) -> int | None:
    """Cards of the fewest replicas that keep the promise, as if one more never hurt; None beyond MOST_REPLICAS."""
    if one.refused is not None:
        return None
    low, high = 0, 1
    while not question.ask(one.config, question.workload, high).holds:
        low, high = high, 2 * high
        if high > MOST_REPLICAS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if question.ask(one.config, question.workload, middle).holds else (middle, high)
    return high * tensor_parallel(one.config)


def _counts(figure: tuple[float, ...] | None, one: WhatIf, args: argparse.Namespace) -> bool:
    """Whether a config may be best: not where it breaks a promise (fewest cards keep it by their number)."""
    return figure is not None and (args.objective == "cards" or one.holds is not False)


def name_of(config: EngineConfig, found: Sequence[WhatIf]) -> str:
    """The settings in words, with the engine where there are several."""
    if len({one.config.engine for one in found}) > 1:
        return _words(config.engine, config.knobs)
    return _words("", config.knobs) if config.knobs else "engine's defaults"


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
