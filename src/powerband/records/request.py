"""What happened to one request: timestamps and counts, from which every latency is derived."""

from typing import Literal

from powerband.records.value import Record

RequestStatus = Literal["ok", "error", "dropped"]


class RequestTrace(Record, array_like=True):
    """Times are integer ns since the run's start, from one monotonic clock.

    ``t_chunks_ns`` and ``chunk_tokens`` run in parallel: arrival of each streamed chunk that carried tokens, and its
    real token count. ``error`` is a short category (``connect``, ``http_503``, ``reset``, ``timeout``, ``malformed``,
    ``stream_error``, ``short``) with a detail after a colon. ``dropped``: the run ended before the answer did, or the
    request was never sent.
    """

    index: int
    status: RequestStatus
    input_tokens: int
    output_tokens_asked: int
    t_sched_ns: int
    t_send_ns: int | None = None
    t_end_ns: int | None = None
    t_chunks_ns: tuple[int, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    error: str | None = None

    @property
    def output_tokens(self) -> int:
        return sum(self.chunk_tokens)
