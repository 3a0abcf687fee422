"""Traffic, from a trace file or a spec, as a Workload."""

from itertools import islice
from pathlib import Path

import msgspec

from powerband.load.lengths import MOST_TOKENS
from powerband.load.scaling import check_scaling
from powerband.load.spec import DEFAULT, is_spec, workload_from_spec
from powerband.load.trace_files import MOONCAKE_BLOCK_TOKENS, open_trace
from powerband.records.errors import RequestError
from powerband.records.units import NS_PER_S
from powerband.records.workload import RequestSpec, Workload

MOST_REQUESTS = 2_000_000  # about 400 bytes each in memory
_LONGEST_S = 10**9  # 30 years; nanoseconds of them fit into 64 bits


def build_workload(
    traffic: str | None,
    *,
    requests: int | None = None,
    scale_lengths: float | None = None,
    scale_outputs: float | None = None,
    scale_rate: float | None = None,
    seed: int = 0,
) -> Workload:
    """The workload that ``traffic`` names: a trace file, a spec, or None for ``in=512,out=128,concurrency=8``.

    A trace keeps its first ``requests`` rows; it is read as a stream and no further than needed. Lengths are
    multiplied by ``scale_lengths`` (answers by ``scale_outputs`` where given) and rounded, at least 1; offsets are
    divided by ``scale_rate``. What was done is in ``Workload.scaling``. Raises RequestError that names the file, line
    and value at fault.
    """
    check_scaling(requests, scale_lengths, scale_outputs, scale_rate)
    text = DEFAULT if traffic is None else traffic.strip()
    if is_spec(text) and not Path(text).exists():
        workload = workload_from_spec(text, requests=requests, scale_rate=scale_rate, seed=seed)
    else:
        workload = _workload_from_file(Path(text), requests, scale_rate, seed)
    inputs = scale_lengths or 1.0
    outputs = scale_outputs or inputs
    return _bounded(workload if inputs == outputs == 1.0 else scaled_lengths(workload, inputs, outputs))


def _bounded(workload: Workload) -> Workload:
    """The workload, if nothing in it is beyond what a run can hold."""
    longest = max(max(one.input_tokens, one.output_tokens) for one in workload.requests)
    if longest > MOST_TOKENS:
        raise RequestError(
            f"the traffic asks for {longest:.4g} tokens in one request",
            hint=f"accepted: prompts and answers of up to {MOST_TOKENS:,} tokens each",
        )
    _check_span(max(one.offset_ns for one in workload.requests))
    return workload


def _check_span(span_ns: int) -> None:
    if span_ns > _LONGEST_S * NS_PER_S:
        raise RequestError(
            f"the traffic goes on for {span_ns // NS_PER_S:.4g} s",
            hint=f"accepted: up to {_LONGEST_S:,} s from the first arrival to the last",
        )


def _workload_from_file(path: Path, requests: int | None, scale_rate: float | None, seed: int) -> Workload:
    name, rows = open_trace(path)
    kept = list(islice(rows, MOST_REQUESTS + 1 if requests is None else requests))
    if not kept:
        raise RequestError(f"{path} holds no request", hint="the file has a header only, or nothing usable")
    if len(kept) > MOST_REQUESTS and requests is None:
        raise RequestError(f"{path} holds more than {MOST_REQUESTS:,} requests", hint="say how many: --requests N")
    said = []
    if scale_rate not in (None, 1.0):
        said.append(f"arrival rate x{scale_rate:g}")
    raised = sum(r.input_tokens < 1 or r.output_tokens < 1 for r in kept)
    if raised:
        said.append(f"{raised} lengths of 0 raised to 1")
    first = min(r.offset_ns for r in kept)
    _check_span(max(r.offset_ns for r in kept) - first)
    by_time = sorted(kept, key=lambda r: r.offset_ns)
    return Workload(
        requests=tuple(_at_least_one(r, round((r.offset_ns - first) / (scale_rate or 1.0))) for r in by_time),
        source=f"{path.name} ({name}, {'first ' if requests else ''}{len(kept):,} rows)",
        scaling=", ".join(said),
        seed=seed,
        block_tokens=MOONCAKE_BLOCK_TOKENS if any(r.block_ids for r in kept) else 0,
    )


def at_rate(workload: Workload, rate_per_s: float) -> Workload:
    """The same requests, instants stretched so that they come at this very rate; RequestError where there is none."""
    now = workload.request_rate_per_s
    if now is None:
        raise RequestError("this traffic has no rate to change", hint="give a trace or arrivals=poisson(4/s)")
    stretched = tuple(
        msgspec.structs.replace(request, offset_ns=round(request.offset_ns * now / rate_per_s))
        for request in workload.requests
    )
    said = f"arrivals at {rate_per_s:.4g}/s"
    scaling = f"{workload.scaling}, {said}" if workload.scaling else said
    return msgspec.structs.replace(workload, requests=stretched, scaling=scaling)


def scaled_lengths(workload: Workload, scale: float, outputs: float) -> Workload:
    """Prompts times ``scale``, answers times ``outputs``, rounded, at least 1; shared blocks scale with prompts."""
    said = f"lengths x{scale:g}" if scale == outputs else f"prompts x{scale:g}, answers x{outputs:g}"
    block = max(1, round(workload.block_tokens * scale)) if workload.block_tokens else 0
    return Workload(
        requests=tuple(_scaled(request, scale, outputs, block) for request in workload.requests),
        source=workload.source,
        scaling=f"{workload.scaling}, {said}" if workload.scaling else said,
        concurrency=workload.concurrency,
        seed=workload.seed,
        block_tokens=block,
    )


def _scaled(request: RequestSpec, scale: float, outputs: float, block: int) -> RequestSpec:
    input_tokens = max(1, round(request.input_tokens * scale))
    return RequestSpec(
        offset_ns=request.offset_ns,
        input_tokens=input_tokens,
        output_tokens=max(1, round(request.output_tokens * outputs)),
        prefix_id=request.prefix_id,
        prefix_tokens=min(round(request.prefix_tokens * scale), input_tokens),
        session=request.session,
        block_ids=request.block_ids[: -(-input_tokens // block)] if block else (),
    )


def _at_least_one(request: RequestSpec, offset_ns: int) -> RequestSpec:
    return RequestSpec(
        offset_ns=offset_ns,
        input_tokens=max(1, request.input_tokens),
        output_tokens=max(1, request.output_tokens),
        prefix_id=request.prefix_id,
        prefix_tokens=request.prefix_tokens,
        session=request.session,
        block_ids=request.block_ids,
    )
