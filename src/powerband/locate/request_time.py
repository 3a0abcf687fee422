"""Where the mean request's time went: client, queue, host, prefill, decode; the parts sum to its length."""

from dataclasses import dataclass

import numpy as np

from powerband.locate.activity import Floats
from powerband.locate.breakdown import Parts, explained_wait_s
from powerband.locate.view import View
from powerband.records.finding import Share

# A request may wait for the step under way, and its own first token takes one.
_STEPS_BEFORE_FIRST = 2.0


@dataclass(frozen=True, slots=True)
class RequestTime:
    """Seconds summed over all sent requests; ``stalled`` is decoding held up by other requests' prompts.

    ``from_gauges`` says whether the queue was read from the engine or inferred from the order of service;
    ``paused_s`` is time in which the engine stood still and no prompt explains it.
    """

    client_s: float
    queue_s: float
    host_s: float
    prefill_s: float
    decode_s: float
    stalled_s: float
    unanswered_s: float
    requests: int
    from_gauges: bool
    paused_s: float = 0.0

    @property
    def total_s(self) -> float:
        waits = self.client_s + self.queue_s + self.host_s + self.prefill_s + self.unanswered_s
        return waits + self.decode_s + self.stalled_s + self.paused_s

    def share(self, seconds: float) -> float:
        return seconds / self.total_s if self.total_s > 0 else 0.0

    def shares(self) -> tuple[Share, ...]:
        """The mean request; seconds are per request."""
        rows = [
            ("client", self.client_s),
            ("queueing", self.queue_s),
            ("host", self.host_s),
            ("prefill", self.prefill_s),
            ("decode", self.decode_s),
            ("decode held up by prefill", self.stalled_s),
            ("unanswered", self.unanswered_s),
        ]
        rows += [("unseen", self.paused_s)] if self.paused_s else []
        count = max(self.requests, 1)
        return tuple(Share(name=name, seconds=s / count, share=self.share(s)) for name, s in rows)


def split_requests(view: View, parts: Parts) -> RequestTime:
    """Split the summed time of requests; where the engine shows its queue, Little's law gives the seconds in it."""
    streams = view.streams
    client_s = float((streams.send_ns - streams.sched_ns).sum()) / 1e9
    wait_s = float((streams.first_ns - streams.send_ns).sum()) / 1e9
    decode_s = float((streams.last_ns - streams.first_ns).sum()) / 1e9
    queue_s = float((view.service.start_ns - streams.send_ns).sum()) / 1e9
    host_s = float(host_each_s(view, parts).sum())
    silent = view.activity.silent.astype(float)
    late = ~streams.started
    unanswered_s = float(view.activity.integral_s(silent, view.service.start_ns[late], streams.first_ns[late]).sum())
    counters, from_gauges = view.counters, view.counters.has_queue
    if counters.running is not None and counters.waiting is not None:
        queue_s = min(view.mean_in_window(counters.waiting) * view.window_s, wait_s)
        unanswered_s = min(unanswered_s, wait_s - queue_s)
        # Neither inference alone: one may count a coarse scrape, the other a queue it cannot see, as host time.
        host_s = max(float(host_each_s(view, parts, since_sent=True).sum()) - queue_s, 0.0)
        host_s = min(host_s, before_engine_s(view), wait_s - queue_s - unanswered_s)
    stalled_s = min(held_up_s(view), decode_s)
    return RequestTime(
        client_s=client_s,
        queue_s=queue_s,
        host_s=host_s,
        prefill_s=max(wait_s - queue_s - host_s - unanswered_s, 0.0),
        decode_s=decode_s - stalled_s,
        stalled_s=stalled_s,
        unanswered_s=unanswered_s,
        requests=streams.size,
        from_gauges=from_gauges,
    )


def host_each_s(view: View, parts: Parts, *, since_sent: bool = False) -> Floats:
    """Per request: seconds with a seat (or since it was sent) in which the engine was not prefilling for anybody."""
    streams = view.streams
    start = streams.send_ns if since_sent else view.service.start_ns
    waited = (streams.first_ns - start) / 1e9
    silent_s = view.activity.integral_s(view.activity.silent.astype(float), start, streams.first_ns)
    explained = explained_wait_s(view, parts, start, streams.first_ns) + silent_s
    step_s = 0.0 if view.steps is None else float(view.steps.at(view.steps.typical))
    return np.maximum(waited - explained - _STEPS_BEFORE_FIRST * step_s, 0.0)


def before_engine_s(view: View) -> float:
    """Request seconds in which a sent request was neither running nor waiting in the engine, by its gauges."""
    counters = view.counters
    if counters.running is None or counters.waiting is None:
        return 0.0
    in_flight = view.activity.at(counters.t_ns, view.activity.waiting + view.activity.decoding)
    outside = np.maximum(in_flight - counters.running - counters.waiting, 0.0)
    return view.mean_in_window(outside) * view.window_s


def held_up_s(view: View) -> float:
    """Stream seconds beyond a decode step while other prompts were in service."""
    if view.steps is None:
        return 0.0
    gaps = view.gaps
    touched = ~gaps.clean
    expected = view.steps.at(gaps.sequences[touched]) * gaps.tokens[touched]
    return max(float((gaps.seconds[touched] - expected).sum()), 0.0)
