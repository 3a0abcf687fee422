"""What one load on one rung gave: latencies of those that were served, and how the device was used meanwhile."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from powerband.account.kv_cache import kv_bytes_per_token
from powerband.locate.device_use import read_device_use
from powerband.records.hardware import DeviceSpec
from powerband.records.ladder import DeviceUse
from powerband.records.metrics import Metrics
from powerband.records.model import ModelSpec
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.slo import Slo
from powerband.records.units import ns_to_s
from powerband.records.value import Measured, Missing, Record, known


def judged(run: Run, slo: Slo | None) -> Run:
    """The run without what only its two ends show: the burst that fills a closed loop, and what its end cuts off.

    The requests that are sent together at the start are left out where at least as many came to their end after them.
    A request in flight when the window ends is left out unless it has missed the SLO already, such as by having had no
    first token for longer than the threshold.
    """
    first = opening(run)
    kept = tuple(
        trace
        for trace in run.traces
        if trace.index not in first and (trace.status != "dropped" or _has_missed(trace, slo, run.end_ns))
    )
    return msgspec.structs.replace(run, traces=kept)


def opening(run: Run) -> frozenset[int]:
    """The requests that fill the closed loop at its start; none where it did not turn over once since."""
    count = run.workload.concurrency or 0
    first = frozenset(trace.index for trace in sorted(run.traces, key=lambda trace: trace.t_sched_ns)[:count])
    later = sum(trace.status == "ok" and trace.index not in first for trace in run.traces)
    return first if 1 < count <= later else frozenset()


def steady_tokens_per_s(run: Run) -> float:
    """Output tokens that arrived, of whichever request, over the time from the loop's first turn to the window's end.

    Where it did not turn over (one request at a time, or hardly an answer) the time counts from the start.
    """
    if not run.traces:
        return 0.0
    begin = min(trace.t_sched_ns for trace in run.traces)
    if opening(run):
        begin = min(trace.t_end_ns for trace in run.traces if trace.status == "ok" and trace.t_end_ns is not None)
    tokens = sum(
        count
        for trace in run.traces
        for t_ns, count in zip(trace.t_chunks_ns, trace.chunk_tokens, strict=True)
        if begin < t_ns <= run.end_ns
    )
    return tokens / ns_to_s(run.end_ns - begin) if run.end_ns > begin else 0.0


def _has_missed(trace: RequestTrace, slo: Slo | None, end_ns: int) -> bool:
    if slo is None:
        return False
    waited_s = ns_to_s(end_ns - trace.t_sched_ns)
    late = slo.ttft_s is not None and not trace.t_chunks_ns and waited_s > slo.ttft_s
    return late or (slo.e2e_s is not None and waited_s > slo.e2e_s)


def holds(metrics: Metrics, slo: Slo | None) -> bool | None:
    """Whether the share of requests that met every threshold reaches the promise's target; None without a promise."""
    return None if slo is None else (metrics.attainment or 0.0) >= slo.attainment


class Decoding(Record):
    """The decode steps of a run, from when each request's tokens came.

    ``batch``: mean sequences decoding while any was; ``steps``: each gives every sequence one token, so that with
    speculation it counts too many; ``context_tokens``: sum over steps and sequences of what each attends to.
    """

    batch: float
    steps: float
    context_tokens: float
    window_s: float


def read_decoding(traces: Sequence[RequestTrace], end_ns: int) -> Decoding | None:
    """None where no request had two chunks."""
    streams = [trace for trace in traces if len(trace.t_chunks_ns) > 1]
    if not streams:
        return None
    first = np.array([trace.t_chunks_ns[0] for trace in streams], dtype=np.float64)
    last = np.array([trace.t_chunks_ns[-1] for trace in streams], dtype=np.float64)
    tokens = np.array([trace.output_tokens for trace in streams], dtype=np.float64) - 1
    inputs = np.array([trace.input_tokens for trace in streams], dtype=np.float64)
    covered_ns = _union(zip(first.tolist(), last.tolist(), strict=True))
    batch = float((last - first).sum() / covered_ns)
    begin = min(trace.t_sched_ns for trace in traces)
    return Decoding(
        batch=batch,
        steps=float(tokens.sum()) / batch,
        context_tokens=float((tokens * (inputs + 1) + tokens * (tokens - 1) / 2).sum()),
        window_s=ns_to_s(end_ns - begin),
    )


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """Length of what the spans cover together."""
    covered, reach = 0.0, float("-inf")
    for low, high in sorted(spans):
        covered += max(0.0, high - max(low, reach))
        reach = max(reach, high)
    return max(covered, 1.0)


def compute_use(run: Run, model: ModelSpec | None, device: DeviceSpec | None, *, kv_value_bytes: float) -> DeviceUse:
    """The driver's readings, and the bandwidth that the decode steps needed by the model's bytes."""
    use = read_device_use(run.device_samples)
    none = Missing(missing="no card was read: " + ("none is here" if not run.device_samples else "too few readings"))
    decoding = read_decoding(run.traces, run.end_ns)
    memory = [value for sample in run.device_samples if (value := known(sample.memory_used_bytes)) is not None]
    return DeviceUse(
        busy_ratio=none if use is None or use.busy_ratio is None else use.busy_ratio,
        memory_bytes=max(memory) if memory else none,
        power_w=none if use is None or use.power_w is None else use.power_w,
        bandwidth_ratio=_bandwidth(decoding, model, device, kv_value_bytes),
        mean_batch=Missing(missing="no answer had two chunks") if decoding is None else decoding.batch,
    )


def _bandwidth(
    decoding: Decoding | None, model: ModelSpec | None, device: DeviceSpec | None, kv_value_bytes: float
) -> Measured:
    if decoding is None:
        return Missing(missing="no answer had two chunks")
    if model is None or device is None or device.bandwidth_bytes_per_s <= 0 or decoding.window_s <= 0:
        return Missing(missing="the model's bytes or the device's bandwidth are not known")
    weights = decoding.steps * step_weight_bytes(model, decoding.batch)
    cache = decoding.context_tokens * kv_bytes_per_token(model, kv_value_bytes)
    return (weights + cache) / decoding.window_s / device.bandwidth_bytes_per_s


def step_weight_bytes(model: ModelSpec, sequences: float) -> float:
    """Weights that a step of ``sequences`` reads: all dense ones but an embedding that is only looked up, and the
    experts that uniform routing hits."""
    if not model.parts:
        return float(model.weight_bytes)
    share = model.experts_per_token / model.experts if model.experts else 1.0
    hit = 1.0 - (1.0 - share) ** max(sequences, 1.0) if share < 1 else 1.0
    total = 0.0
    for part in model.parts:
        if part.role == "vision" or (part.role == "embedding" and not model.tied):
            continue
        total += part.bytes * (hit if part.role == "experts" else 1.0)
    return total
