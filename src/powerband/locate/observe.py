"""A diagnosis from engine and host samples alone: a server watched while others use it, no request of our own."""

import numpy as np

from powerband.locate.activity import Floats
from powerband.locate.counters import Counters, mean_over_time, read_counters
from powerband.locate.device_use import LAUNCHING, DeviceUse, read_device_use
from powerband.locate.queueing import FREE_SEATS, SEATS_TAKEN
from powerband.locate.service import LIMIT_KNOBS, read_stated
from powerband.records.finding import Cause, Diagnosis, Finding, Share, Whole
from powerband.records.run import Contention, Run
from powerband.records.units import percent

# As in diagnose: the engine had nothing to do for most of the window.
_IDLE = 0.5
# Requests that wait make up this share of those in the engine before the queue is a finding.
_MIN_SHARE = 0.1
_KV_FULL = 0.9
_PROBE = "watch with --probe --traffic: timings of requests of our own show what a step is made of"


def diagnose_samples(run: Run) -> Diagnosis:
    """Split the watched time by the engine's gauges and counters; without a running gauge all of it stays unseen."""
    counters = read_counters(run.engine_samples)
    use = read_device_use(run.device_samples)
    times = [s.t_ns for s in run.engine_samples] + [s.t_ns for s in run.host_samples]
    times += [s.t_ns for s in run.device_samples]
    window_s = (max(times) - min(times)) / 1e9 if times else 0.0
    breakdown = _split(counters, window_s)
    findings = sorted(_find(run, counters, breakdown, use), key=lambda finding: -finding.share)
    return Diagnosis(
        sources=_sources(run),
        window_s=window_s,
        breakdown=breakdown,
        verdict=findings[0].cause,
        findings=tuple(findings),
        gpu_busy_ratio=None if use is None else use.busy_ratio,
        unseen=(
            "request timings: none were sent",
            "the device itself (busy time, kernels): a profiler trace shows it"
            if use is None
            else "which kernels run and what is between them: a profiler trace shows it",
        ),
        reason=findings[0].evidence,
        notes=(
            "the split of busy time into prefill and decode follows the engine's own counters",
            *(() if use is None else (f"{use.seen} ({use.readings} readings of the driver)",)),
        ),
    )


def _sources(run: Run) -> tuple[str, ...]:
    named = (
        ("engine metrics", run.engine_samples),
        ("host", run.host_samples),
        ("device readings", run.device_samples),
    )
    return tuple(name for name, there in named if there)


def _split(counters: Counters, window_s: float) -> tuple[Share, ...]:
    """no work, prefill, decode, unseen; the last takes what is left, so the parts sum to the window."""
    idle = 0.0 if counters.running is None else _idle_share(counters)
    prefill, decode = counters.prefill_s or 0.0, counters.decode_s or 0.0
    seen = counters.running is not None and prefill + decode > 0
    busy = 1.0 - idle
    prefill_share = busy * prefill / (prefill + decode) if seen else 0.0
    decode_share = busy - prefill_share if seen else 0.0
    rows = [("prefill", prefill_share), ("decode", decode_share), ("no work", idle)]
    rows.append(("unseen", max(1.0 - prefill_share - decode_share - idle, 0.0)))
    return tuple(Share(name=name, seconds=share * window_s, share=share) for name, share in rows)


def _idle_share(counters: Counters) -> float:
    waiting = np.zeros_like(counters.t_ns) if counters.waiting is None else np.nan_to_num(counters.waiting)
    idle = (np.nan_to_num(counters.running if counters.running is not None else waiting) <= 0) & (waiting <= 0)
    return float(idle.mean())


def _find(run: Run, counters: Counters, breakdown: tuple[Share, ...], use: DeviceUse | None) -> list[Finding]:
    if isinstance(run.contention, Contention) and run.contention.contended:
        why = f"the host was contended, which says nothing about the engine: {run.contention.reason}"
        return [_finding("undecided", 1.0, why, "stop the other work and watch again", "the same on a quiet host")]
    if counters.running is None:
        why = f"{len(run.engine_samples)} readings, too few of which say how many requests run"
        return [_finding("undecided", 1.0, why, "start the engine with its metrics on (llama.cpp: --metrics)", _PROBE)]
    findings = []
    shares = {part.name: part.share for part in breakdown}
    if shares["no work"] >= _IDLE:
        findings.append(
            _finding(
                "idle_no_work",
                shares["no work"],
                f"no request was in the engine in {percent(shares['no work'])} of the readings",
                "nothing to tune for this traffic: fewer or smaller cards, or more traffic on this one",
                "double the arrival rate: throughput should double and latency stay",
            )
        )
    findings += _queue(run, counters, counters.running)
    busy = 1 - shares["no work"]
    if not findings and use is not None and use.busy_ratio is not None and use.busy_ratio < LAUNCHING * busy:
        why = f"requests run {percent(busy)} of the time, while {use.seen}: the device waits for the host in between"
        test = "eager against graphs, or a profiler trace: the gaps between kernels"
        findings.append(
            _finding("launch_bound", busy - use.busy_ratio, why, "CUDA graphs, less host work a step", test)
        )
    if not findings:
        why = (
            f"busy {percent(1 - shares['no work'])} of the time with no queue; gauges do not show "
            f"what a step is made of"
        )
        findings.append(_finding("undecided", 1 - shares["no work"], why, _PROBE, _PROBE))
    return findings


def _queue(run: Run, counters: Counters, running: Floats) -> list[Finding]:
    if counters.waiting is None:
        return []
    waiting = mean_over_time(counters.t_ns, counters.waiting)
    run_mean = mean_over_time(counters.t_ns, running)
    share = waiting / (waiting + run_mean) if waiting + run_mean > 0 else 0.0
    if share < _MIN_SHARE:
        return []
    most = int(np.nanmax(running))
    seen = f"{waiting:.1f} requests wait and {run_mean:.1f} run on average (at most {most})"
    kv = counters.kv_used_ratio
    queued = np.nan_to_num(counters.waiting) > 0
    full = kv is not None and bool(np.any(queued)) and float(np.nan_to_num(kv[queued]).mean()) >= _KV_FULL
    cause: Cause
    if full or (counters.preemptions or 0) >= 1:
        cause, remedy = "kv_pressure", "more room for the KV cache: 8-bit KV type, shorter context limit, more memory"
        seen += f"; {counters.preemptions or 0:.0f} preemptions" + (
            ", KV cache full while requests waited" if full else ""
        )
    elif most <= 1:
        cause, remedy = "no_batching", "serve several sequences at once (more slots, continuous batching)"
    else:
        cause, remedy = "queueing", "more sequences at once if memory bears it, more replicas, or less traffic"
        seats = read_stated(run, LIMIT_KNOBS)
        if seats is not None and float(np.mean(running[queued] <= SEATS_TAKEN * seats[1])) > FREE_SEATS:
            seen += f", seats were free ({seats[0]} {seats[1]}): they wait for memory or for room in a step"
            remedy = (
                "a larger KV cache or more tokens a step, shorter or cached prompts, more replicas, or less traffic"
            )
    test = "raise the limit on sequences (or the KV cache) and watch again: the queue should shrink"
    return [_finding(cause, share, seen, remedy, test, of_requests=True)]


def _finding(
    cause: Cause, share: float, evidence: str, remedy: str, test: str, *, of_requests: bool = False
) -> Finding:
    of: Whole = "request_time" if of_requests else "window"
    return Finding(cause=cause, share=share, evidence=evidence, remedy=remedy, test=test, of=of)
