"""Traffic written as a spec: ``in=512,out=128,concurrency=8``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from powerband.load import arrivals
from powerband.load.lengths import MOST_TOKENS, Draw, parse_length
from powerband.load.trace_files import MOONCAKE_BLOCK_TOKENS, open_trace
from powerband.records import units
from powerband.records.errors import RequestError, unknown_name
from powerband.records.workload import RequestSpec, Workload

DEFAULT = "in=512,out=128,concurrency=8"
DEFAULT_REQUESTS = 100
_KEYS = ("in", "out", "lengths", "concurrency", "arrivals", "prefix", "prefixes", "turns")
_ARRIVALS = ("poisson", "gamma", "constant", "burst", "ramp", "steps")
_HINT = f"write {DEFAULT} or in=512,out=128,arrivals=poisson(4/s)"
_ARRIVALS_HINT = (
    "write arrivals=poisson(4/s), gamma(4/s,2.0), constant(4/s), burst, ramp(1/s..8/s,60s) or steps(1/s,2/s,4/s,30s)"
)
MOST_CLIENTS = 1_000_000
_RATES = (1e-9, 1e9)  # a second
Arrive = Callable[[int, np.random.Generator], arrivals.Offsets]


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec, read. Either ``draw_input`` and ``draw_output`` or ``lengths``, a trace whose rows are drawn, are set.

    ``prefixes`` heads of ``prefix`` tokens are shared by the prompts; ``turns`` requests make a session.
    """

    draw_input: Draw | None
    draw_output: Draw | None
    lengths: Path | None
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
    rows = _sampled(spec.lengths, count, rng) if spec.lengths is not None else _drawn(spec, count, rng)
    offsets = np.zeros(len(rows)) if spec.arrive is None else spec.arrive(len(rows), rng)
    made = tuple(
        msgspec.structs.replace(row, offset_ns=units.s_to_ns(at)) for row, at in zip(rows, offsets, strict=True)
    )
    return Workload(
        requests=made,
        source=f"spec {text}",
        scaling="" if scale_rate is None else f"arrival rate x{scale_rate:g}",
        concurrency=spec.concurrency,
        seed=seed,
        block_tokens=MOONCAKE_BLOCK_TOKENS if any(row.block_ids for row in rows) else 0,
    )


def _drawn(spec: Spec, count: int, rng: np.random.Generator) -> list[RequestSpec]:
    assert spec.draw_input is not None
    assert spec.draw_output is not None
    inputs, outputs = spec.draw_input(count, rng).tolist(), spec.draw_output(count, rng).tolist()
    which = rng.integers(0, spec.prefixes, count).tolist()
    if spec.turns > 1:
        return _sessions(inputs, outputs, spec.turns)
    return [
        RequestSpec(
            offset_ns=0,
            input_tokens=inputs[i],
            output_tokens=outputs[i],
            prefix_id=which[i] if spec.prefix else None,
            prefix_tokens=min(spec.prefix, inputs[i]),
        )
        for i in range(count)
    ]


def _sessions(inputs: list[int], outputs: list[int], turns: int) -> list[RequestSpec]:
    """``in`` is what a turn adds: its prompt is all that the session said before, and that."""
    rows, history = [], 0
    for i, (new, answer) in enumerate(zip(inputs, outputs, strict=True)):
        history = new if i % turns == 0 else history + new
        rows.append(
            RequestSpec(
                offset_ns=0,
                input_tokens=history,
                output_tokens=answer,
                prefix_id=i // turns,
                prefix_tokens=history,
                session=i // turns,
            )
        )
        history += answer
    return rows


def _sampled(path: Path, count: int, rng: np.random.Generator) -> list[RequestSpec]:
    """``count`` rows drawn evenly from a trace in one pass, in the trace's order: prompt and answer stay together."""
    _, rows = open_trace(path)
    kept: list[tuple[int, RequestSpec]] = []
    for number, row in enumerate(rows):
        if len(kept) < count:
            kept.append((number, row))
        elif (place := int(rng.integers(0, number + 1))) < count:
            kept[place] = (number, row)
    if not kept:
        raise RequestError(f"{path} holds no request", hint="the file has a header only, or nothing usable")
    kept.sort(key=lambda item: item[0])
    return [
        msgspec.structs.replace(row, input_tokens=max(1, row.input_tokens), output_tokens=max(1, row.output_tokens))
        for _, row in kept
    ]


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
        if (key in values) == ("lengths" in values):
            raise RequestError(f"traffic {text!r} needs in= and out=, or lengths=TRACE", hint=_HINT)
    if ("concurrency" in values) == ("arrivals" in values):
        raise RequestError(
            f"traffic {text!r} needs one of concurrency= (closed loop) and arrivals= (open loop)", hint=_HINT
        )
    if len(values.keys() & {"prefix", "turns", "lengths"}) > 1:
        raise RequestError("prefix=, turns= and lengths= each say what prompts share", hint="give one of the three")
    if scale_rate is not None and "concurrency" in values:
        raise RequestError("a closed loop has no rate to scale", hint="change concurrency=, or give arrivals=")
    return Spec(
        draw_input=parse_length("in", values["in"]) if "in" in values else None,
        draw_output=parse_length("out", values["out"]) if "out" in values else None,
        lengths=Path(values["lengths"]) if "lengths" in values else None,
        concurrency=_count("concurrency", values["concurrency"], MOST_CLIENTS) if "concurrency" in values else None,
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
    if depth:
        raise RequestError(f"traffic {text!r} has {'no closing' if depth > 0 else 'a spare'} parenthesis", hint=_HINT)
    return [part for part in parts if part.strip()]


def _count(key: str, text: str, most: int = MOST_TOKENS) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise RequestError(f"cannot read {key}={text!r}", hint=f"write a whole number of at least 1, such as {key}=8")
    if value > most:
        raise RequestError(f"{key}={text!r} is too much", hint=f"accepted: 1 to {most:,}")
    return value


def _rate(text: str, scale: float) -> float:
    rate = units.parse_rate(text) * scale
    if not _RATES[0] <= rate <= _RATES[1]:
        raise RequestError(f"arrivals at {rate:g}/s are not possible", hint="accepted: 1e-9 to 1e9 a second")
    return rate


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
        low, high = (_rate(part, scale) for part in arguments[0].split(".."))
        span_s = units.parse_duration(arguments[1])
        return lambda count, rng: arrivals.ramp(low, high, span_s, count)
    if word == "steps":
        rates = [_rate(part, scale) for part in arguments[:-1]]
        step_s = units.parse_duration(arguments[-1])
        if not rates:
            raise ValueError(word)
        return lambda count, rng: arrivals.steps(rates, step_s, count, rng)
    rate = _rate(arguments[0], scale)
    if word == "gamma":
        cv = float(arguments[1])
        if not 0.01 <= cv <= 100:
            raise ValueError(cv)
        return lambda count, rng: arrivals.gamma(rate, cv, count, rng)
    if word == "constant":
        return lambda count, rng: arrivals.constant(rate, count)
    return lambda count, rng: arrivals.poisson(rate, count, rng)
