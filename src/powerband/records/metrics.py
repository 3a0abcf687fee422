"""The metric definitions in code, a request at a time; docs/metrics.md has them in words, columns.py those of a run.

All latencies count from the scheduled instant ``t_sched`` unless the name says ``send``.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from powerband.records.request import RequestTrace
from powerband.records.slo import Slo
from powerband.records.units import NS_PER_S, ns_to_s
from powerband.records.value import Missing, Record

_NO_ANSWER = Missing(missing="no request completed")


class Distribution(Record, tag_field="is", tag="distribution"):
    """Mean and percentiles (linear interpolation between order statistics) of ``n`` values, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    n: int


class Metrics(Record):
    """What a run delivered. Rates are over ``duration_s``: first scheduled instant to last answer or deadline."""

    requests: int
    completed: int
    errors: int
    dropped: int
    duration_s: float
    request_rate_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_s: Distribution | Missing
    ttft_from_send_s: Distribution | Missing
    tpot_s: Distribution | Missing
    itl_s: Distribution | Missing
    e2e_s: Distribution | Missing
    attainment: float | None  # None: no SLO was set
    goodput_per_s: float | None


def ttft_s(trace: RequestTrace) -> float | None:
    """Time to first token: t_1 - t_sched."""
    return ns_to_s(trace.t_chunks_ns[0] - trace.t_sched_ns) if trace.t_chunks_ns else None


def ttft_from_send_s(trace: RequestTrace) -> float | None:
    """t_1 - t_send: what most tools call TTFT; it leaves out the client's own queue."""
    if not trace.t_chunks_ns or trace.t_send_ns is None:
        return None
    return ns_to_s(trace.t_chunks_ns[0] - trace.t_send_ns)


def e2e_s(trace: RequestTrace) -> float | None:
    """t_n - t_sched."""
    return ns_to_s(trace.t_chunks_ns[-1] - trace.t_sched_ns) if trace.t_chunks_ns else None


def tpot_s(trace: RequestTrace) -> float | None:
    """Time per output token: (t_n - t_1) / (n - 1); None below two tokens or where all came in one chunk."""
    if trace.output_tokens < 2 or len(trace.t_chunks_ns) < 2:
        return None
    return ns_to_s(trace.t_chunks_ns[-1] - trace.t_chunks_ns[0]) / (trace.output_tokens - 1)


def itl_s(trace: RequestTrace) -> list[float]:
    """Gap before each chunk after the first, shared evenly by the tokens the chunk holds."""
    times = trace.t_chunks_ns
    if trace.output_tokens == len(times):  # one token a chunk
        return [(later - earlier) / NS_PER_S for earlier, later in pairwise(times)]
    gaps: list[float] = []
    for earlier, later, tokens in zip(trace.t_chunks_ns, trace.t_chunks_ns[1:], trace.chunk_tokens[1:], strict=False):
        gaps.extend([ns_to_s(later - earlier) / tokens] * tokens)
    return gaps


def is_good(trace: RequestTrace, slo: Slo) -> bool:
    """Completed and within every threshold."""
    return trace.status == "ok" and slo.met_by(ttft_s=ttft_s(trace), tpot_s=tpot_s(trace), e2e_s=e2e_s(trace))


def distribution(values: Iterable[float | None], reason: str = "") -> Distribution | Missing:
    """Summarise the values that are there; Missing with a reason where none is."""
    return summarise(np.array([value for value in values if value is not None], dtype=float), reason)


def summarise(data: npt.NDArray[np.float64], reason: str = "") -> Distribution | Missing:
    """The same of an array; ``reason`` says why it is empty."""
    if data.size == 0:
        return Missing(missing=reason or _NO_ANSWER.missing)
    p50, p90, p99 = np.percentile(data, [50, 90, 99])
    return Distribution(mean=float(data.mean()), p50=float(p50), p90=float(p90), p99=float(p99), n=int(data.size))
