"""The traffic: which requests, how long, and when."""

import msgspec

from powerband.records.units import ns_to_s, s_to_ns
from powerband.records.value import Record


class RequestSpec(Record, array_like=True):
    """One request to send ``offset_ns`` after the run starts.

    ``prefix_id`` names a prompt prefix shared by several requests: two with the same id share the shorter one's
    ``prefix_tokens``. ``block_ids`` name the prompt's blocks of ``Workload.block_tokens`` tokens in order: equal ids
    hold equal tokens (prefix trees). Requests with the same ``session`` are turns: each waits for the one before.
    """

    offset_ns: int
    input_tokens: int
    output_tokens: int
    prefix_id: int | None = None
    prefix_tokens: int = 0
    session: int | None = None
    block_ids: tuple[int, ...] = ()


class Workload(Record):
    """Requests in order of ``offset_ns``.

    ``concurrency`` set means a closed loop: that many requests are kept in flight and the offsets are ignored.
    ``source`` says where the traffic came from and ``scaling`` what was done to it, in words that go into the report.
    """

    requests: tuple[RequestSpec, ...]
    source: str
    scaling: str = ""
    concurrency: int | None = None
    seed: int = 0
    block_tokens: int = 0  # length of one of RequestSpec.block_ids; 0: none are used

    @property
    def input_tokens(self) -> int:
        return sum(request.input_tokens for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output_tokens for request in self.requests)

    @property
    def longest_tokens(self) -> int:
        """The longest prompt plus answer: what one sequence must be able to hold."""
        return max((r.input_tokens + r.output_tokens for r in self.requests), default=0)

    @property
    def span_s(self) -> float:
        """Seconds between the first and the last scheduled arrival."""
        return ns_to_s(self.requests[-1].offset_ns - self.requests[0].offset_ns) if self.requests else 0.0

    @property
    def request_rate_per_s(self) -> float | None:
        """Offered arrivals per second; None for a closed loop or a single instant."""
        if self.concurrency is not None or self.span_s == 0:
            return None
        return (len(self.requests) - 1) / self.span_s

    def first(self, seconds: float) -> "Workload":
        """The requests that arrive in the first ``seconds``; a closed loop keeps all, and is cut by the clock."""
        if self.request_rate_per_s is None:
            return self
        limit_ns = self.requests[0].offset_ns + s_to_ns(seconds)
        kept = tuple(request for request in self.requests if request.offset_ns <= limit_ns)
        return msgspec.structs.replace(self, requests=kept)
