"""The metric definitions in code; docs/metrics.md has them in words.

All latencies count from the scheduled instant ``t_sched`` unless the name says ``send``.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from powerband.records.request import RequestTrace
from powerband.records.slo import Slo
from powerband.records.units import ns_to_s
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
    gaps: list[float] = []
    for earlier, later, tokens in zip(trace.t_chunks_ns, trace.t_chunks_ns[1:], trace.chunk_tokens[1:], strict=False):
        gaps.extend([ns_to_s(later - earlier) / tokens] * tokens)
    return gaps


def is_good(trace: RequestTrace, slo: Slo) -> bool:
    """Completed and within every threshold."""
    return trace.status == "ok" and slo.met_by(ttft_s=ttft_s(trace), tpot_s=tpot_s(trace), e2e_s=e2e_s(trace))


def distribution(values: Iterable[float | None], reason: str = "") -> Distribution | Missing:
    """Summarise the values that are there; Missing with a reason where none is."""
    data = np.array([value for value in values if value is not None], dtype=float)
    if data.size == 0:
        return Missing(missing=reason or _NO_ANSWER.missing)
    p50, p90, p99 = np.percentile(data, [50, 90, 99])
    return Distribution(mean=float(data.mean()), p50=float(p50), p90=float(p90), p99=float(p99), n=int(data.size))


def window_s(traces: Sequence[RequestTrace], end_ns: int | None = None) -> float:
    """First scheduled instant to the last end; ``end_ns`` is the deadline of a run that was cut off."""
    if not traces:
        return 0.0
    ends = [trace.t_end_ns for trace in traces if trace.t_end_ns is not None]
    last = max([*ends, *([end_ns] if end_ns is not None else [])], default=traces[0].t_sched_ns)
    return ns_to_s(last - min(trace.t_sched_ns for trace in traces))


def compute_metrics(traces: Sequence[RequestTrace], slo: Slo | None = None, end_ns: int | None = None) -> Metrics:
    """Every figure of a run from its request traces; tokens of failed requests do not count as output."""
    duration = window_s(traces, end_ns)
    done = [trace for trace in traces if trace.status == "ok"]
    good = None if slo is None else sum(is_good(trace, slo) for trace in traces)

    def per_s(count: float) -> float:
        return count / duration if duration > 0 else 0.0

    tokens_in = sum(trace.input_tokens for trace in done)
    tokens_out = sum(trace.output_tokens for trace in done)
    return Metrics(
        requests=len(traces),
        completed=len(done),
        errors=sum(trace.status == "error" for trace in traces),
        dropped=sum(trace.status == "dropped" for trace in traces),
        duration_s=duration,
        request_rate_per_s=per_s(len(done)),
        input_tokens_per_s=per_s(tokens_in),
        output_tokens_per_s=per_s(tokens_out),
        total_tokens_per_s=per_s(tokens_in + tokens_out),
        ttft_s=distribution(map(ttft_s, done)),
        ttft_from_send_s=distribution(map(ttft_from_send_s, done)),
        tpot_s=distribution(map(tpot_s, done), "no completed answer had two tokens in two chunks"),
        itl_s=distribution((gap for trace in done for gap in itl_s(trace)), "no completed answer had two chunks"),
        e2e_s=distribution(map(e2e_s, done)),
        attainment=None if good is None else (good / len(traces) if traces else 0.0),
        goodput_per_s=None if good is None else per_s(good),
    )
