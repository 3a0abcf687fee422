"""Where a promise stops holding: how much faster requests may come, and how much longer they may be."""

from collections.abc import Callable

import msgspec

from powerband.records.value import Record
from powerband.records.workload import RequestSpec, Workload

MOST = 16.0  # times the traffic as it is; beyond that nothing is searched
PRECISION = 0.02  # of the factor


class Breaking(Record):
    """Factors on the traffic up to which the promise holds: None where it does not even hold at 1/16 of it.

    ``rate`` is None under a closed loop too. ``MOST`` means: at least that.
    """

    rate: float | None
    prompts: float | None
    answers: float | None


def find_breaking(holds: Callable[[Workload], bool], workload: Workload) -> Breaking:
    """By bisection on one factor at a time, as if more traffic could only make it worse."""
    open_loop = workload.request_rate_per_s is not None
    return Breaking(
        rate=_largest(lambda factor: holds(faster(workload, factor))) if open_loop else None,
        prompts=_largest(lambda factor: holds(longer(workload, factor, 1.0))),
        answers=_largest(lambda factor: holds(longer(workload, 1.0, factor))),
    )


def faster(workload: Workload, factor: float) -> Workload:
    """Arrivals at ``factor`` times the rate."""

    def sooner(request: RequestSpec) -> RequestSpec:
        return msgspec.structs.replace(request, offset_ns=round(request.offset_ns / factor))

    return msgspec.structs.replace(workload, requests=tuple(map(sooner, workload.requests)))


def longer(workload: Workload, prompts: float, answers: float) -> Workload:
    """Prompts and answers at a multiple of their length, at least one token; shared prefixes stay as they are."""

    def stretched(request: RequestSpec) -> RequestSpec:
        return msgspec.structs.replace(
            request,
            input_tokens=max(1, round(request.input_tokens * prompts)),
            output_tokens=max(1, round(request.output_tokens * answers)),
        )

    return msgspec.structs.replace(workload, requests=tuple(map(stretched, workload.requests)))


def _largest(holds: Callable[[float], bool]) -> float | None:
    """The largest factor that holds, within PRECISION; None where 1/MOST does not."""
    low = 1.0
    if holds(low):
        while holds(2 * low):
            low *= 2
            if low >= MOST:
                return MOST
    else:
        while True:
            low /= 2
            if holds(low):
                break
            if low <= 1 / MOST:
                return None
    high = 2 * low
    while high / low > 1 + PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
