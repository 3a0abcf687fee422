"""The figures of a whole run, from its requests taken one at a time, in bounded memory."""

from array import array
from collections import Counter
from collections.abc import Iterable
from math import nan

import numpy as np
import numpy.typing as npt

from powerband.records.metrics import (
    Distribution,
    Metrics,
    e2e_s,
    itl_s,
    summarise,
    tpot_s,
    ttft_from_send_s,
    ttft_s,
)
from powerband.records.quantiles import Quantiles
from powerband.records.request import RequestStatus, RequestTrace
from powerband.records.slo import Slo
from powerband.records.units import ns_to_s
from powerband.records.value import Missing

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
NEVER = -(1 << 62)  # a time that did not come
_STATUSES: tuple[RequestStatus, ...] = ("ok", "error", "dropped")
_OK, _ERROR, _DROPPED = range(3)


class Columns:
    """What a run's figures need of its requests: 65 bytes each, however long the answers were.

    ``add`` every trace once, in any order. Latencies are in seconds, nan where there is none; times in ns, or NEVER.
    ``errors`` counts by category, ``starved`` those that were the client's own limit.
    """

    def __init__(self, traces: Iterable[RequestTrace] = ()) -> None:
        self._status = bytearray()
        self._t_sched_ns, self._t_send_ns, self._t_end_ns = array("q"), array("q"), array("q")
        self._ttft_s, self._from_send_s, self._tpot_s, self._e2e_s = array("d"), array("d"), array("d"), array("d")
        self._input_tokens, self._output_tokens = array("i"), array("i")
        self._itl_s = Quantiles()
        self.errors: Counter[str] = Counter()
        self.first_error: str | None = None
        self.starved = 0
        for trace in traces:
            self.add(trace)

    def __len__(self) -> int:
        return len(self._status)

    def add(self, trace: RequestTrace) -> None:
        self._status.append(_STATUSES.index(trace.status))
        self._t_sched_ns.append(trace.t_sched_ns)
        self._t_send_ns.append(NEVER if trace.t_send_ns is None else trace.t_send_ns)
        self._t_end_ns.append(NEVER if trace.t_end_ns is None else trace.t_end_ns)
        self._ttft_s.append(_or_nan(ttft_s(trace)))
        self._from_send_s.append(_or_nan(ttft_from_send_s(trace)))
        self._tpot_s.append(_or_nan(tpot_s(trace)))
        self._e2e_s.append(_or_nan(e2e_s(trace)))
        self._input_tokens.append(trace.input_tokens)
        self._output_tokens.append(trace.output_tokens)
        if trace.status == "ok":
            self._itl_s.add(itl_s(trace))
        if trace.error is not None:
            self.errors[trace.error.partition(":")[0]] += 1
            self.first_error = self.first_error or trace.error
            self.starved += "in the client" in trace.error

    @property
    def t_sched_ns(self) -> Times:
        return np.frombuffer(self._t_sched_ns, dtype=np.int64)

    @property
    def t_send_ns(self) -> Times:
        return np.frombuffer(self._t_send_ns, dtype=np.int64)

    @property
    def completed(self) -> int:
        return int(self._ok().sum())

    def in_order(self, name: str) -> tuple[Times, Floats]:
        """Instants due in order, and ``ttft_s``, ``tpot_s`` or ``e2e_s`` of each: nan where it did not complete."""
        order = np.argsort(self.t_sched_ns, kind="stable")
        return self.t_sched_ns[order], np.where(self._ok(), self._floats(name), nan)[order]

    def latencies_s(self, name: str) -> Floats:
        """The same without instants and without the nan."""
        values = self.in_order(name)[1]
        return values[~np.isnan(values)]

    def good(self, slo: Slo) -> int:
        """How many requests completed within every threshold."""
        done = self._ok()
        columns = (self._floats(name)[done].tolist() for name in ("ttft_s", "tpot_s", "e2e_s"))
        return sum(
            slo.met_by(ttft_s=_or_none(ttft), tpot_s=_or_none(tpot), e2e_s=_or_none(e2e))
            for ttft, tpot, e2e in zip(*columns, strict=True)
        )

    def window_s(self, end_ns: int | None = None) -> float:
        """First scheduled instant to the last end; ``end_ns`` is the deadline of a run that was cut off."""
        if not len(self):
            return 0.0
        ends = np.frombuffer(self._t_end_ns, dtype=np.int64)
        ends = ends[ends != NEVER]
        last = [*([int(ends.max())] if ends.size else []), *([end_ns] if end_ns is not None else [])]
        return ns_to_s(max(last, default=self._t_sched_ns[0]) - int(self.t_sched_ns.min()))

    def metrics(self, slo: Slo | None = None, end_ns: int | None = None) -> Metrics:
        """Every figure; tokens of failed requests do not count as output."""
        duration, done = self.window_s(end_ns), self._ok()
        good = None if slo is None else self.good(slo)

        def per_s(count: float) -> float:
            return count / duration if duration > 0 else 0.0

        def latency(name: str, reason: str = "") -> Distribution | Missing:
            values = self._floats(name)[done]
            return summarise(values[~np.isnan(values)], reason)

        tokens_in, tokens_out = self._tokens(self._input_tokens), self._tokens(self._output_tokens)
        return Metrics(
            requests=len(self),
            completed=int(done.sum()),
            errors=self._status.count(_ERROR),
            dropped=self._status.count(_DROPPED),
            duration_s=duration,
            request_rate_per_s=per_s(int(done.sum())),
            input_tokens_per_s=per_s(tokens_in),
            output_tokens_per_s=per_s(tokens_out),
            total_tokens_per_s=per_s(tokens_in + tokens_out),
            ttft_s=latency("ttft_s"),
            ttft_from_send_s=latency("from_send_s"),
            tpot_s=latency("tpot_s", "no completed answer had two tokens in two chunks"),
            itl_s=self._itl(),
            e2e_s=latency("e2e_s"),
            attainment=None if good is None else (good / len(self) if len(self) else 0.0),
            goodput_per_s=None if good is None else per_s(good),
        )

    def _itl(self) -> Distribution | Missing:
        gaps = self._itl_s
        if not len(gaps):
            return Missing(missing="no completed answer had two chunks")
        p50, p90, p99 = gaps.percentiles([50, 90, 99])
        return Distribution(mean=gaps.mean, p50=p50, p90=p90, p99=p99, n=len(gaps))

    def _ok(self) -> npt.NDArray[np.bool_]:
        ok: npt.NDArray[np.bool_] = np.frombuffer(self._status, dtype=np.uint8) == _OK
        return ok

    def _floats(self, name: str) -> Floats:
        return np.frombuffer(getattr(self, f"_{name}"), dtype=np.float64)

    def _tokens(self, column: "array[int]") -> int:
        return int(np.frombuffer(column, dtype=np.int32)[self._ok()].sum(dtype=np.int64))


def compute_metrics(traces: Iterable[RequestTrace], slo: Slo | None = None, end_ns: int | None = None) -> Metrics:
    """Every figure of a run from its request traces."""
    return Columns(traces).metrics(slo, end_ns)


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _or_none(value: float) -> float | None:
    return None if value != value else value
