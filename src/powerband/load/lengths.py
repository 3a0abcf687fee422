"""How long prompts and answers are: draws in whole tokens, at least 1."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from powerband.records.errors import RequestError

Lengths = npt.NDArray[np.int64]
Draw = Callable[[int, np.random.Generator], Lengths]

MOST_TOKENS = 100_000_000  # of a prompt or an answer: beyond every engine's context, and in memory within a second
_HINT = "write 512, uniform(16..2048), normal(512,100,16..2048) or lognormal(6.0,0.9,16..3000)"


def parse_length(name: str, text: str) -> Draw:
    """A sampler for ``512``, ``uniform(lo..hi)``, ``normal(mean,sd,lo..hi)`` or ``lognormal(mu,sigma,lo..hi)``.

    ``mu`` and ``sigma`` are of ln(tokens), as numpy and scipy write them. Draws outside ``lo..hi`` are drawn again,
    not clipped, so that no spike of requests stands at a bound.
    """
    word, paren, rest = text.strip().partition("(")
    if not paren:
        return _fixed(name, text)
    if not rest.endswith(")"):
        raise RequestError(f"cannot read {name}={text!r}: no closing parenthesis", hint=_HINT)
    arguments = [part.strip() for part in rest[:-1].split(",")]
    low, high = _bounds(name, text, arguments.pop()) if ".." in arguments[-1] else (1, MOST_TOKENS)
    values = _numbers(name, text, arguments)
    wanted = {"uniform": 0, "normal": 2, "lognormal": 2}.get(word.strip().lower())
    if wanted is None or len(values) != wanted or (not wanted and ".." not in text):
        raise RequestError(f"cannot read {name}={text!r}", hint=_HINT)
    if word.strip().lower() == "uniform":
        return lambda count, rng: rng.integers(low, high + 1, count)
    if values[1] < 0:
        raise RequestError(f"{name}={text!r} has a negative spread", hint=_HINT)
    is_log = word.strip().lower() == "lognormal"
    return lambda count, rng: _within(low, high, count, lambda n: _normal(values, is_log, n, rng), name, text)


def _normal(values: list[float], is_log: bool, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    draw = rng.normal(values[0], values[1], count)
    return np.exp(np.minimum(draw, 40.0)) if is_log else draw  # e^40 is above any length; more would overflow


def _within(
    low: int, high: int, count: int, draw: Callable[[int], npt.NDArray[np.float64]], name: str, text: str
) -> Lengths:
    kept = np.empty(0, dtype=np.int64)
    for _ in range(200):
        values = np.rint(draw(max(64, 2 * (count - kept.size))))
        inside = values[(values >= low) & (values <= high)]
        kept = np.concatenate([kept, inside.astype(np.int64)])
        if kept.size >= count:
            return kept[:count]
    raise RequestError(f"{name}={text!r} puts almost no length into {low}..{high}", hint="widen the bounds")


def _fixed(name: str, text: str) -> Draw:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise RequestError(f"cannot read {name}={text!r} as a length of at least 1 token", hint=_HINT)
    if value > MOST_TOKENS:
        raise RequestError(f"{name}={text!r} is too long", hint=f"accepted: up to {MOST_TOKENS:,} tokens")
    return lambda count, rng: np.full(count, value, dtype=np.int64)


def _bounds(name: str, text: str, part: str) -> tuple[int, int]:
    low, _, high = part.partition("..")
    try:
        bounds = int(low), int(high)
    except ValueError:
        raise RequestError(f"cannot read the bounds of {name}={text!r}", hint=_HINT) from None
    if not 1 <= bounds[0] <= bounds[1] <= MOST_TOKENS:
        raise RequestError(f"{name}={text!r} needs 1 <= low <= high <= {MOST_TOKENS:,}", hint=_HINT)
    return bounds


def _numbers(name: str, text: str, parts: list[str]) -> list[float]:
    try:
        values = [float(part) for part in parts]
    except ValueError:
        raise RequestError(f"cannot read {name}={text!r}", hint=_HINT) from None
    if not all(np.isfinite(values)):
        raise RequestError(f"{name}={text!r} is not finite", hint=_HINT)
    return values
