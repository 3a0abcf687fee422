"""Who was doing what when: the requests as arrays, and how many waited and decoded at every instant."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerband.records.run import Run

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Streams:
    """The requests that were sent, in order of sending; times in ns since the run's start.

    ``first_ns`` and ``last_ns`` bound the token stream; a request without a token has ``started`` False and both at
    ``leave_ns``, when it ended or the run did.
    """

    index: Ints
    sched_ns: Ints
    send_ns: Ints
    first_ns: Ints
    last_ns: Ints
    leave_ns: Ints
    input_tokens: Ints
    output_tokens: Ints
    started: Flags
    chunks: tuple[tuple[int, ...], ...]
    chunk_tokens: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return int(self.send_ns.size)

    @property
    def request_ns(self) -> int:
        """Summed time of all requests, from the scheduled instant to the last token."""
        return int((self.last_ns - self.sched_ns).sum())


@dataclass(frozen=True, slots=True)
class Activity:
    """Piecewise constant counts between ``edges_ns``: requests due but unsent, waiting for a first token, decoding."""

    edges_ns: Ints
    due: Ints
    waiting: Ints
    hopeless: Ints  # of the waiting, those that never got a token
    decoding: Ints

    @property
    def silent(self) -> Flags:
        """Intervals in which all that goes on is a wait that never ended with a token."""
        silent: Flags = (self.decoding == 0) & (self.waiting > 0) & (self.hopeless == self.waiting)
        return silent

    @property
    def spans_ns(self) -> Ints:
        return np.diff(self.edges_ns)

    @property
    def window_ns(self) -> int:
        return int(self.edges_ns[-1] - self.edges_ns[0])

    @property
    def served_share(self) -> float:
        """Share of the window in which a request was in flight."""
        return float(self.spans_ns[self.decoding + self.waiting > 0].sum() / max(self.window_ns, 1))

    def at(self, t_ns: Floats | Ints, counts: Ints) -> Ints:
        """The value of ``counts`` at each instant; 0 outside the window."""
        place = np.searchsorted(self.edges_ns, t_ns, side="right") - 1
        inside = (place >= 0) & (place < counts.size)
        return np.where(inside, counts[np.clip(place, 0, max(counts.size - 1, 0))], 0) if counts.size else 0 * place

    def integral_s(self, rate: Floats, from_ns: Ints, to_ns: Ints) -> Floats:
        """Integral over time of ``rate`` (one value an interval) between pairs of instants, in seconds."""
        total = np.concatenate([[0.0], np.cumsum(rate * self.spans_ns / 1e9)])
        upper = np.interp(to_ns, self.edges_ns, total)
        lower = np.interp(from_ns, self.edges_ns, total)
        gained: Floats = np.maximum(upper - lower, 0.0)
        return gained


def read_streams(run: Run) -> Streams:
    """The sent requests of a run as arrays; a clock that ran backwards is straightened, so no part is negative."""
    sent = sorted((t for t in run.traces if t.t_send_ns is not None), key=lambda t: (t.t_send_ns or 0, t.index))
    rows = []
    for trace in sent:
        send = max(trace.t_send_ns or 0, trace.t_sched_ns)
        over = trace.t_end_ns if trace.t_end_ns is not None else max(run.end_ns, send)
        leave = max(over, send, *trace.t_chunks_ns[-1:])
        first = max(trace.t_chunks_ns[0], send) if trace.t_chunks_ns else leave
        last = max(trace.t_chunks_ns[-1] if trace.status == "ok" and trace.t_chunks_ns else leave, first)
        rows.append((trace.index, trace.t_sched_ns, send, first, last, leave, trace.input_tokens, trace.output_tokens))
    table = np.array(rows, dtype=np.int64).reshape(-1, 8)
    index, sched, send_ns, first_ns, last_ns, leave_ns, input_tokens, output_tokens = table.T
    return Streams(
        index=index,
        sched_ns=sched,
        send_ns=send_ns,
        first_ns=first_ns,
        last_ns=last_ns,
        leave_ns=leave_ns,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        started=np.array([bool(t.t_chunks_ns) for t in sent], dtype=bool),
        chunks=tuple(t.t_chunks_ns for t in sent),
        chunk_tokens=tuple(t.chunk_tokens for t in sent),
    )


def compute_activity(run: Run, streams: Streams) -> Activity:
    """Counts over the window: first scheduled instant to the last end or the run's deadline."""
    sched = np.array([t.t_sched_ns for t in run.traces], dtype=np.int64)
    unsent = np.array([t.t_sched_ns for t in run.traces if t.t_send_ns is None], dtype=np.int64)
    start = int(sched.min()) if sched.size else 0
    end = max([run.end_ns, start, *streams.leave_ns.tolist(), *streams.last_ns.tolist()])
    marks = (streams.sched_ns, streams.send_ns, streams.first_ns, streams.last_ns, unsent)
    edges = np.unique(np.concatenate([np.array([start, end], dtype=np.int64), *marks]))
    edges = edges[(edges >= start) & (edges <= end)]
    if edges.size == 1:
        edges = np.array([start, start], dtype=np.int64)
    late = ~streams.started
    due = count_spans(edges, streams.sched_ns, streams.send_ns)
    due += count_spans(edges, unsent, np.full_like(unsent, end))
    return Activity(
        edges_ns=edges,
        due=due,
        waiting=count_spans(edges, streams.send_ns, streams.first_ns),
        hopeless=count_spans(edges, streams.send_ns[late], streams.first_ns[late]),
        decoding=count_spans(edges, streams.first_ns, streams.last_ns),
    )


def count_spans(edges: Ints, starts: Ints, ends: Ints) -> Ints:
    """How many of the spans cover each interval between ``edges``."""
    change = np.zeros(edges.size, dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, starts).clip(0, edges.size - 1), 1)
    np.add.at(change, np.searchsorted(edges, ends).clip(0, edges.size - 1), -1)
    return np.cumsum(change)[:-1]
