"""Per-request logs of other load generators as request traces, so that their runs can be shown and compared here.

Each gives its own figures back once the terms are translated (docs/metrics.md). When a request was due is what the tool
says of it: guidellm's target, AIPerf's credit, vLLM's wait behind its own limit (0 without one).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from powerband.load.answer import share_out
from powerband.records.errors import RequestError
from powerband.records.request import RequestTrace
from powerband.records.units import s_to_ns

_ERROR_CHARS = 200


@dataclass(frozen=True, slots=True)
class PeerLog:
    """What a tool recorded; times of the traces are ns from the first instant due."""

    tool: str
    traces: tuple[RequestTrace, ...]


def read_peer_log(path: Path) -> PeerLog:
    """The log of vLLM ``bench serve`` (--save-detailed), guidellm (JSON) or AIPerf (profile_export.jsonl).

    Raises RequestError for a file that is none of them, or lacks the requests.
    """
    hint = "give vllm bench's --save-detailed JSON, guidellm's JSON, or AIPerf's profile_export.jsonl"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    for tool, read in _READERS.items():
        try:
            traces = list(read(raw))
        except (msgspec.MsgspecError, ValueError, KeyError, OverflowError, RecursionError):
            continue  # not this one's
        if traces:
            return PeerLog(tool, tuple(_from_first_due(traces)))
    raise RequestError(f"{path} is no per-request log of another tool", hint=hint)


def _from_first_due(traces: list[RequestTrace]) -> Iterator[RequestTrace]:
    """In order of the schedule, times from its first instant."""
    in_order = sorted(traces, key=lambda trace: trace.t_sched_ns)
    zero = in_order[0].t_sched_ns

    def since(at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - zero

    for index, trace in enumerate(in_order):
        yield msgspec.structs.replace(
            trace,
            index=index,
            t_sched_ns=trace.t_sched_ns - zero,
            t_send_ns=since(trace.t_send_ns),
            t_end_ns=since(trace.t_end_ns),
            t_chunks_ns=tuple(at - zero for at in trace.t_chunks_ns),
        )


def _trace(
    send_ns: int,
    chunks_ns: list[int],
    tokens: int,
    input_tokens: int,
    *,
    due_ns: int | None,
    error: str | None,
) -> RequestTrace:
    """``tokens`` over the chunks that came; the first and the last chunk hold at least one of two or more."""
    counts = share_out(tokens, len(chunks_ns)) if chunks_ns else []
    kept = [(at, count) for at, count in zip(chunks_ns, counts, strict=True) if count]
    return RequestTrace(
        index=0,
        status="ok" if error is None else "error",
        input_tokens=input_tokens,
        output_tokens_asked=tokens,
        t_sched_ns=send_ns if due_ns is None else due_ns,
        t_send_ns=send_ns,
        t_end_ns=chunks_ns[-1] if chunks_ns else None,
        t_chunks_ns=tuple(at for at, _ in kept),
        chunk_tokens=tuple(count for _, count in kept),
        error=None if error is None else error[:_ERROR_CHARS],
    )


class _Vllm(msgspec.Struct):
    """vllm/benchmarks/serve.py, the result with --save-detailed; seconds, a value a request. vLLM 0.32; 0.26 lacks the
    last one."""

    start_times: list[float]
    ttfts: list[float]
    itls: list[list[float]]
    input_lens: list[int]
    output_lens: list[int]
    errors: list[str]
    queue_times: list[float] | None = None  # behind --max-concurrency; how late the schedule itself ran is not kept


def _read_vllm(raw: bytes) -> Iterator[RequestTrace]:
    found = msgspec.convert(json.loads(raw), _Vllm)  # the file holds Infinity, which is no JSON
    queued = found.queue_times or [0.0] * len(found.ttfts)
    columns = (found.start_times, found.ttfts, found.itls, found.input_lens, found.output_lens, found.errors, queued)
    for start, ttft, itls, inputs, outputs, error, waited in zip(*columns, strict=True):
        chunks = [s_to_ns(start + at) for at in accumulate([ttft, *itls])] if outputs and not error else []
        said = error.strip().splitlines()[-1] if error.strip() else None if outputs else "short: no token came"
        yield _trace(s_to_ns(start), chunks, outputs, inputs, due_ns=s_to_ns(start - waited), error=said)


class _Timings(msgspec.Struct):
    """guidellm/schemas/base/info.py, ``RequestTimings``; Unix seconds. guidellm 0.8.1."""

    targeted_start: float | None = None
    request_start: float | None = None
    first_token_iteration: float | None = None
    last_token_iteration: float | None = None
    request_end: float | None = None
    token_iterations: int = 0


class _Info(msgspec.Struct):
    timings: _Timings
    error: str | None = None


class _Stats(msgspec.Struct):
    """guidellm/schemas/base/request_stats.py."""

    info: _Info
    prompt_tokens: float | None = None
    output_tokens: float | None = None


class _ByStatus(msgspec.Struct):
    successful: list[_Stats]
    errored: list[_Stats]
    incomplete: list[_Stats]


class _Benchmark(msgspec.Struct):
    requests: _ByStatus


class _Guidellm(msgspec.Struct):
    benchmarks: list[_Benchmark]


def _read_guidellm(raw: bytes) -> Iterator[RequestTrace]:
    """The first and the last token's instants alone are stored, so that ITL is TPOT; ``t_end`` is ``request_end``."""
    for benchmark in msgspec.convert(json.loads(raw), _Guidellm).benchmarks:
        for stats in benchmark.requests.successful:
            yield from _guidellm_trace(stats, None)
        for stats in benchmark.requests.errored:
            yield from _guidellm_trace(stats, stats.info.error or "error")
        for stats in benchmark.requests.incomplete:
            for trace in _guidellm_trace(stats, None):
                yield msgspec.structs.replace(trace, status="dropped")


def _guidellm_trace(stats: _Stats, error: str | None) -> Iterator[RequestTrace]:
    at = stats.info.timings
    if at.request_start is None:
        return  # never sent
    ends = (at.first_token_iteration, at.last_token_iteration)
    chunks = [s_to_ns(instant) for instant in ends[: at.token_iterations] if instant is not None]
    due_ns = s_to_ns(at.targeted_start) if at.targeted_start is not None else None
    tokens, prompt = int(stats.output_tokens or 0), int(stats.prompt_tokens or 0)
    trace = _trace(s_to_ns(at.request_start), chunks, tokens, prompt, due_ns=due_ns, error=error)
    counts = (1, tokens - 1) if len(trace.chunk_tokens) == 2 else trace.chunk_tokens
    end_ns = None if at.request_end is None else s_to_ns(at.request_end)
    yield msgspec.structs.replace(trace, chunk_tokens=counts, t_end_ns=end_ns)


class _Value(msgspec.Struct):
    value: float | list[float]
    unit: str


class _Metadata(msgspec.Struct):
    request_start_ns: int
    credit_issued_ns: int | None = None
    benchmark_phase: str = "profiling"


class _AiperfRecord(msgspec.Struct):
    """A line of profile_export.jsonl; AIPerf 0.13."""

    metadata: _Metadata
    metrics: dict[str, _Value]
    error: dict[str, Any] | None = None


def _read_aiperf(raw: bytes) -> Iterator[RequestTrace]:
    """Its token counts are of its own tokenizer over the text that came, not the server's."""
    decoder = msgspec.json.Decoder(_AiperfRecord)
    for line in raw.splitlines():
        record = decoder.decode(line)
        if record.metadata.benchmark_phase != "profiling":
            continue
        start_ns = record.metadata.request_start_ns
        first, gaps = (_values_ns(record, name) for name in ("time_to_first_token", "inter_chunk_latency"))
        chunks = [start_ns + round(after) for after in accumulate([*first, *gaps])]
        counts = _count(record, "output_sequence_length"), _count(record, "input_sequence_length")
        error = None if record.error is None else f"{record.error.get('type')}: {record.error.get('message')}"
        yield _trace(start_ns, chunks, *counts, due_ns=record.metadata.credit_issued_ns, error=error)


def _values_ns(record: _AiperfRecord, name: str) -> list[float]:
    found = record.metrics.get(name)
    if found is None:
        return []
    values = found.value if isinstance(found.value, list) else [found.value]
    return [value * _NS_IN[found.unit] for value in values]


def _count(record: _AiperfRecord, name: str) -> int:
    found = record.metrics.get(name)
    return int(found.value) if found is not None and not isinstance(found.value, list) else 0


_NS_IN = {"ns": 1.0, "us": 1e3, "ms": 1e6, "sec": 1e9}
_READERS: dict[str, Callable[[bytes], Iterator[RequestTrace]]] = {
    "AIPerf": _read_aiperf,
    "guidellm": _read_guidellm,
    "vLLM bench serve": _read_vllm,
}
