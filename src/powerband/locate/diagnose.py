"""From a run to a diagnosis: split the time, ask every rule, and say which finding is the verdict."""

from dataclasses import replace

import numpy as np

from powerband.locate.breakdown import Parts, split_window
from powerband.locate.decode import find_decode
from powerband.locate.observe import diagnose_samples
from powerband.locate.pauses import Pause, cut_pauses, describe, find_pauses
from powerband.locate.prefill import find_prefill
from powerband.locate.queueing import MIN_SHARE, find_queueing
from powerband.locate.request_time import RequestTime, split_requests
from powerband.locate.view import View, build_view
from powerband.records.finding import Cause, Diagnosis, Finding
from powerband.records.hardware import DeviceSpec
from powerband.records.memory import MemoryLedger
from powerband.records.metrics import is_good
from powerband.records.model import ModelSpec
from powerband.records.run import ClientCheck, Contention, Run
from powerband.records.slo import Slo
from powerband.records.units import percent
from powerband.records.value import Missing

# The engine had nothing to do for most of the window: more speed would only make it wait more.
_IDLE = 0.5
# From this share of the request time on, a wait that better settings would remove matters more than idle time.
_WAIT_MATTERS = 0.3
# With fewer answers than this, a share of the request time is an anecdote.
_MIN_ANSWERS = 5
# More failures than this, and the answers that came are no sample of the traffic.
_MAX_FAILED = 0.5
# Causes that are a way of working, not a defect: they explain a service time and do not lengthen a wait.
_SERVICE: frozenset[Cause] = frozenset({"memory_bandwidth_bound", "compute_bound", "launch_bound", "undecided"})


def diagnose(
    run: Run,
    *,
    ledger: MemoryLedger | None = None,
    model: ModelSpec | None = None,
    device: DeviceSpec | None = None,
    slo: Slo | None = None,
) -> Diagnosis:
    """Where the time of a run went and why, for an engine seen from outside.

    Reads request timings, the engine's own samples and those of the host, each of which may be missing. The parts of
    ``breakdown`` sum to the window; where they had to be inferred, ``notes`` says from what. Raises nothing.
    """
    if not any(trace.t_send_ns is not None for trace in run.traces):
        return diagnose_samples(run)
    whole = view = build_view(run, ledger=ledger, model=model, device=device, slo=slo)
    pauses = find_pauses(view)
    if pauses:
        view = build_view(cut_pauses(run, pauses), ledger=ledger, model=model, device=device, slo=slo)
    parts = split_window(view)
    time = split_requests(view, parts)
    if pauses:
        parts = replace(parts, unseen_ns=parts.unseen_ns + whole.activity.window_ns - parts.window_ns)
        time = replace(time, paused_s=(whole.streams.request_ns - view.streams.request_ns) / 1e9)
    findings = rank(unusable(run) or [*collect(view, parts, time), *_paused(pauses, parts)], view)
    return Diagnosis(
        sources=sources(run),
        window_s=parts.window_ns / 1e9,
        breakdown=parts.shares(),
        verdict=findings[0].cause,
        findings=tuple(findings),
        gpu_busy_ratio=None if view.use is None else view.use.busy_ratio,
        unseen=unseen(view),
        reason=findings[0].evidence,
        request_breakdown=time.shares(),
        mean_request_s=time.total_s / max(time.requests, 1),
        notes=notes(view, pauses if paused_share(pauses, parts) < MIN_SHARE else [], parts),
    )


def unusable(run: Run) -> list[Finding]:
    """Why the run says nothing about the engine: the client, the host, or failures; empty where it does."""
    # Contention first: it makes the client late too.
    if isinstance(run.contention, Contention) and run.contention.contended:
        return [
            _undecided(
                f"the host was contended, which says nothing about the engine: {run.contention.reason}",
                "stop the other work, or pin engine and client to cores of their own, and measure again",
                "the same run on a quiet host",
            )
        ]
    if isinstance(run.client, ClientCheck) and run.client.verdict == "limited":
        return [
            Finding(
                cause="client_limited",
                share=1.0,
                evidence=f"the load generator was the limit: {run.client.reason}",
                remedy="a lighter client: more client processes, another machine, or a lower rate",
                test="offer half the rate: the schedule delay of the client should vanish",
            )
        ]
    failed = [trace for trace in run.traces if trace.status == "error"]
    answered = sum(1 for trace in run.traces if trace.t_chunks_ns)
    if len(failed) > _MAX_FAILED * len(run.traces):
        first = failed[0].error or "no reason given"
        return [
            _undecided(
                f"{len(failed)} of {len(run.traces)} requests failed (the first: {first})",
                "see the engine's log; latencies of the rest are no sample of this traffic",
                "one request alone",
            )
        ]
    if answered < _MIN_ANSWERS:
        return [
            _undecided(
                f"only {answered} of {len(run.traces)} requests got an answer, and {_MIN_ANSWERS} are needed",
                "a longer run or a higher rate",
                "the same traffic for longer",
            )
        ]
    return []


def collect(view: View, parts: Parts, time: RequestTime) -> list[Finding]:
    """What every rule finds; never empty."""
    findings = [
        *find_queueing(view, time),
        *find_prefill(view, parts, time),
        *find_decode(view, time),
        *_idle(view, parts, time),
    ]
    unanswered = time.share(time.unanswered_s)
    if unanswered >= MIN_SHARE:
        evidence = f"{percent(unanswered)} of the request time went to requests in service that never got a token"
        findings.append(
            _undecided(
                evidence, "see the engine's log, and give the run a later deadline", "one request alone", unanswered
            )
        )
    return findings or [_undecided("no part of the request time stands out", "nothing to change", "a heavier load")]


def _idle(view: View, parts: Parts, time: RequestTime) -> list[Finding]:
    share = parts.no_work_ns / parts.window_ns if parts.window_ns else 1.0
    if share < _IDLE or _slo_missed(view):
        return []
    in_flight = float(np.average(view.activity.waiting + view.activity.decoding, weights=view.activity.spans_ns))
    return [
        Finding(
            cause="idle_no_work",
            share=share,
            evidence=(
                f"no request was in flight for {percent(share)} of the window ({in_flight:.2f} in flight on average)"
            ),
            remedy="nothing to tune for this traffic: fewer or smaller cards, or more traffic on this one",
            test="double the arrival rate: throughput should double and latency stay",
        )
    ]


def paused_share(pauses: list[Pause], parts: Parts) -> float:
    return sum(pause.cut_ns for pause in pauses) / parts.window_ns if pauses else 0.0


def _paused(pauses: list[Pause], parts: Parts) -> list[Finding]:
    share = paused_share(pauses, parts)
    if share < MIN_SHARE:
        return []
    return [
        _undecided(
            describe(pauses, parts.window_ns),
            "send the traffic's own shapes before it is measured; a log that tells of compiling names the kernel",
            "the same traffic again on the same engine: what was compiled does not pause it twice",
            share,
        )
    ]


def _slo_missed(view: View) -> bool:
    if view.slo is None or not view.run.traces:
        return False
    good = sum(is_good(trace, view.slo) for trace in view.run.traces)
    return good < view.slo.attainment * len(view.run.traces)


def rank(findings: list[Finding], view: View) -> list[Finding]:
    """Order of size, the verdict first.

    An idle engine comes before the make-up of its service time, which would be as it is on any engine, and behind a
    wait that settings can remove.
    """

    def place(finding: Finding) -> tuple[int, float]:
        wait = finding.cause not in _SERVICE and finding.cause != "idle_no_work"
        front = 0 if wait and finding.share >= _WAIT_MATTERS else 1 if finding.cause == "idle_no_work" else 2
        idle = any(other.cause == "idle_no_work" for other in findings)
        return (front if idle else 0, -finding.share)

    return sorted(findings, key=place)


def sources(run: Run) -> tuple[str, ...]:
    named = (
        ("request timings", bool(run.traces)),
        ("engine metrics", bool(run.engine_samples)),
        ("host", bool(run.host_samples)),
        ("device readings", bool(run.device_samples)),
        ("client check", isinstance(run.client, ClientCheck)),
    )
    return tuple(name for name, there in named if there)


def unseen(view: View) -> tuple[str, ...]:
    """What was not measured, and why it matters."""
    lines = []
    if view.counters.prefill_s is None:
        lines.append("the engine does not count prefill time: work on the host before it cannot be told from prefill")
    if not view.counters.has_queue:
        lines.append("the engine does not show its queue: waits are inferred from the order of service")
    if view.counters.kv_used_ratio is None and view.counters.preemptions is None:
        lines.append("KV cache use and preemptions are not exposed")
    if isinstance(view.run.contention, Missing):
        lines.append(f"contention: {view.run.contention.missing}")
    if view.use is None:
        lines.append("the device itself (busy time, kernels): a profiler trace shows it")
    else:
        lines.append("which kernels run and what is between them: a profiler trace shows it")
    return tuple(lines)


def notes(view: View, pauses: list[Pause], parts: Parts) -> tuple[str, ...]:
    served = "unknown" if view.service.served is None else str(view.service.served)
    lines = ["parts inside the engine are inferred from outside: token times, gauges and counters"]
    lines.append(f"served at once: {served} (from {view.service.source})")
    if view.steps is not None:
        steps = ", ".join(f"{n}: {seconds * 1e3:.3g} ms" for n, seconds, _ in view.steps.levels[:8])
        lines.append(f"decode step by sequences: {steps}" if steps else "decode step: too few gaps at any one level")
    if pauses:
        lines.append(f"left out: {describe(pauses, parts.window_ns)}")
    if view.use is not None:
        lines.append(f"{view.use.seen} ({view.use.readings} readings of the driver)")
    return tuple(lines)


def _undecided(evidence: str, remedy: str, test: str, share: float = 1.0) -> Finding:
    return Finding(cause="undecided", share=share, evidence=evidence, remedy=remedy, test=test)
