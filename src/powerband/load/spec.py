"""Traffic written as a spec: ``in=512,out=128,concurrency=8``."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from powerband.load import arrivals
from powerband.load.lengths import Draw, parse_length
from powerband.records import units
from powerband.records.errors import RequestError, unknown_name
from powerband.records.workload import RequestSpec, Workload

DEFAULT = "in=512,out=128,concurrency=8"
DEFAULT_REQUESTS = 100
_KEYS = ("in", "out", "concurrency", "arrivals", "prefix", "prefixes", "turns")
_ARRIVALS = ("poisson", "gamma", "constant", "burst", "ramp", "steps")
_HINT = f"write {DEFAULT} or in=512,out=128,arrivals=poisson(4/s)"
_ARRIVALS_HINT = (
    "write arrivals=poisson(4/s), gamma(4/s,2.0), constant(4/s), burst, ramp(1/s..8/s,60s) or steps(1/s,2/s,4/s,30s)"
)
Arrive = Callable[[int, np.random.Generator], arrivals.Offsets]


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec, read; ``prefixes`` prompts heads of ``prefix`` tokens are shared, ``turns`` requests make a session."""

    draw_input: Draw
    draw_output: Draw
    concurrency: int | None
    arrive: Arrive | None
    prefix: int
    prefixes: int
    turns: int


def is_spec(text: str) -> bool:
    return "=" in text and text.split("=", 1)[0].strip().lower() in _KEYS


def workload_from_spec(text: str, *, requests: int | None, scale_rate: float | None, seed: int) -> Workload:
    """Draw a workload; the same seed gives the same one. Raises RequestError naming the part that is wrong."""
    spec = parse_spec(text, scale_rate=scale_rate)
    count = requests or DEFAULT_REQUESTS
    rng = np.random.default_rng(seed)
    inputs, outputs = spec.draw_input(count, rng), spec.draw_output(count, rng)
    offsets = np.zeros(count) if spec.arrive is None else spec.arrive(count, rng)
    which = rng.integers(0, spec.prefixes, count)
    made = tuple(
        RequestSpec(
            offset_ns=units.s_to_ns(offsets[i]),
            input_tokens=int(inputs[i]),
            output_tokens=int(outputs[i]),
            prefix_id=int(which[i]) if spec.prefix else None,
            prefix_tokens=min(spec.prefix, int(inputs[i]) - 1),
            session=i // spec.turns if spec.turns > 1 else None,
        )
        for i in range(count)
    )
    return Workload(
        requests=made,
        source=f"spec {text}",
        scaling="" if scale_rate is None else f"arrival rate x{scale_rate:g}",
        concurrency=spec.concurrency,
        seed=seed,
    )


def parse_spec(text: str, *, scale_rate: float | None = None) -> Spec:
    values: dict[str, str] = {}
    for part in split_outside_parentheses(text):
        key, equals, value = part.partition("=")
        key = key.strip().lower()
        if not equals:
            raise RequestError(f"cannot read traffic part {part!r}", hint=_HINT)
        if key not in _KEYS:
            raise unknown_name("traffic field", key, _KEYS)
        if key in values:
            raise RequestError(f"traffic names {key}= twice", hint=_HINT)
        values[key] = value.strip()
    for key in ("in", "out"):
        if key not in values:
            raise RequestError(f"traffic {text!r} has no {key}=", hint=_HINT)
    if ("concurrency" in values) == ("arrivals" in values):
        raise RequestError(
            f"traffic {text!r} needs one of concurrency= (closed loop) and arrivals= (open loop)", hint=_HINT
        )
    if scale_rate is not None and "concurrency" in values:
        raise RequestError("a closed loop has no rate to scale", hint="change concurrency=, or give arrivals=")
    return Spec(
        draw_input=parse_length("in", values["in"]),
        draw_output=parse_length("out", values["out"]),
        concurrency=_count("concurrency", values["concurrency"]) if "concurrency" in values else None,
        arrive=_arrivals(values["arrivals"], scale_rate or 1.0) if "arrivals" in values else None,
        prefix=_count("prefix", values["prefix"]) if "prefix" in values else 0,
        prefixes=_count("prefixes", values.get("prefixes", "1")),
        turns=_count("turns", values.get("turns", "1")),
    )


def split_outside_parentheses(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def _count(key: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise RequestError(f"cannot read {key}={text!r}", hint=f"write a whole number of at least 1, such as {key}=8")
    return value


def _arrivals(text: str, scale: float) -> Arrive:
    word, _, rest = text.partition("(")
    word = word.strip().lower()
    if word not in _ARRIVALS:
        raise unknown_name("arrival process", word, _ARRIVALS)
    arguments = [part.strip() for part in rest.removesuffix(")").split(",") if part.strip()]
    try:
        return _process(word, arguments, scale)
    except (ValueError, IndexError):
        raise RequestError(f"cannot read arrivals={text!r}", hint=_ARRIVALS_HINT) from None


def _process(word: str, arguments: list[str], scale: float) -> Arrive:
    """ValueError or IndexError where the arguments do not fit the process."""
    most = {"burst": 0, "poisson": 1, "constant": 1, "gamma": 2, "ramp": 2}.get(word, len(arguments))
    if len(arguments) > most:
        raise ValueError(word)
    if word == "burst":
        return lambda count, rng: arrivals.burst(count)
    if word == "ramp":
        low, high = (units.parse_rate(part) * scale for part in arguments[0].split(".."))
        span_s = units.parse_duration(arguments[1])
        return lambda count, rng: arrivals.ramp(low, high, span_s, count)
    if word == "steps":
        rates = [units.parse_rate(part) * scale for part in arguments[:-1]]
        step_s = units.parse_duration(arguments[-1])
        if not rates:
            raise ValueError(word)
        return lambda count, rng: arrivals.steps(rates, step_s, count, rng)
    rate = units.parse_rate(arguments[0]) * scale
    if word == "gamma":
        cv = float(arguments[1])
        if not 0.01 <= cv <= 100:
            raise ValueError(cv)
        return lambda count, rng: arrivals.gamma(rate, cv, count, rng)
    if word == "constant":
        return lambda count, rng: arrivals.constant(rate, count)
    return lambda count, rng: arrivals.poisson(rate, count, rng)
