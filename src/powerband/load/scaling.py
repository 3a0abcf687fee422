"""Which counts and factors of traffic are possible; needs nothing else, so that short commands can ask at once."""

import math

from powerband.records.errors import RequestError

_MOST_ASKED = 100_000_000
_SCALES = (1e-9, 1e9)


def check_scaling(
    requests: int | None, scale_lengths: float | None, scale_outputs: float | None, scale_rate: float | None
) -> None:
    """Raise RequestError for a number that no workload can have; None is a number that was not given."""
    _check("--requests", requests)
    _check("--scale-lengths", scale_lengths)
    _check("--scale-outputs", scale_outputs)
    _check("--scale-rate", scale_rate)


def _check(option: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise RequestError(f"{option} {value:g} must be above 0", hint=f"write {option} with a number above 0")
    low, high = (1, _MOST_ASKED) if option == "--requests" else _SCALES
    if value is not None and not low <= value <= high:
        raise RequestError(f"{option} {value:g} is not possible", hint=f"accepted: {low:,} to {high:,.0f}")
