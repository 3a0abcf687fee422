"""The only place where units are converted, read from text and written for people."""

import math
import re

from powerband.records.errors import RequestError

NS_PER_S = 1_000_000_000
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_DURATION_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40, "k": KIB, "m": MIB, "g": GIB}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def ns_to_s(ns: float) -> float:
    return ns / NS_PER_S


def s_to_ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def parse_duration(text: str) -> float:
    """Seconds from ``500ms``, ``1.5s``, ``20m``; a bare number is refused, since its unit would be a guess."""
    return _parse(
        text, _DURATION_S, "duration", "such as 500ms, 2s or 20m", (1e-9, 366 * 24 * 3600.0), "1ns to 366 days"
    )


def parse_bytes(text: str) -> int:
    """Bytes from ``24GiB``, ``80GB``, ``512M``; single letters are binary, as engines use them."""
    return round(_parse(text, _BYTES, "size", "such as 24GiB or 80GB", (1, 1 << 50), "1B to 1024TiB"))


def parse_rate(text: str) -> float:
    """Events per second from ``45/s`` or ``90/m``."""
    number, _, per = text.partition("/")
    if per.strip().lower() not in {"s", "m", "min", "h"} or not _QUANTITY.fullmatch(number):
        raise RequestError(f"cannot read rate {text!r}", hint="write events per time, such as 45/s or 90/m")
    value = float(number) / _DURATION_S[per.strip().lower()]
    if not (math.isfinite(value) and value > 0):
        raise RequestError(f"rate {text!r} must be above 0", hint="write events per time, such as 45/s")
    return value


def _parse(
    text: str,
    units: dict[str, float] | dict[str, int],
    noun: str,
    example: str,
    bounds: tuple[float, float],
    accepted: str,
) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise RequestError(f"cannot read {noun} {text!r}", hint=f"write a number and a unit, {example}")
    value = float(match[1]) * units[match[2].lower()]
    if not bounds[0] <= value <= bounds[1]:
        raise RequestError(f"{noun} {text!r} is not possible", hint=f"accepted: {accepted}, {example}")
    return value


def format_duration(seconds: float) -> str:
    """Three significant digits in the unit a person would use."""
    size = abs(seconds)
    if size >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if size >= 1:
        return f"{seconds:.3g} s"
    if size >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs" if size else "0 s"


def percent(share: float, digits: int = 0, *, sign: bool = False) -> str:
    """``59 %`` of 0.59; with ``sign`` also where it is above 0."""
    return f"{100 * share:{'+' if sign else ''}.{digits}f} %"


def format_bytes(count: float) -> str:
    """GiB, MiB or KiB; the engines' own unit, whatever they print beside it."""
    size = abs(count)
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count:.0f} B"
