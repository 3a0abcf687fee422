"""A diagnosis from a profiler trace: how busy the device was, what it waited for, and what would prove it."""

from collections import Counter

import numpy as np

from powerband.locate.gaps import GAP_PARTS, Busy, Gaps, find_gaps, shares, split_busy
from powerband.locate.roofline import decode_floor_s
from powerband.locate.trace_steps import decode_names, decode_sequences, describe_steps, in_prompts_ns, read_steps
from powerband.records.finding import Cause, Diagnosis, Finding
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.timeline import KERNEL, Timeline
from powerband.records.units import format_duration, percent

# From here on the device is the limit: what is left of the gaps would bring less than a quarter more.
_BUSY = 0.8
# Steps under torch.profiler took 1.3 (Transformers on an H200) to 2.9 times (a tiny model on a CPU) as long as without.
_RECORDED = 0.5
# Reading weights explains a step's device time from this share of it on: kernels reach a half to nine tenths of the
# datasheet's bandwidth, and attention, norms and sampling come on top.
_OF_FLOOR = 1 / 3
_MIN_SHARE = 0.02
# Above this share communication is worth less parallelism inside a layer (a rule of thumb of serving teams).
_COMMUNICATION = 0.3
# Host time in gaps longer than this is work between steps rather than the launching of single kernels.
_STEP_GAP_NS = 1_000_000
# Sequences decoded at once below this leave a step bandwidth-bound: the ridge of current cards is at 150 to 600
# FLOP/byte, and a decode step of n sequences does about n FLOP per byte of 16-bit weights.
_RIDGE_SEQUENCES = 128


def diagnose_timeline(
    timeline: Timeline, *, model: ModelSpec | None = None, device: DeviceSpec | None = None
) -> Diagnosis:
    """Busy ratio over the union of streams, the window in parts that sum, and findings by what was waited for.

    The window runs from the first to the last piece of device work. With ``model`` and ``device`` the decode steps that
    an engine marks are compared with the roofline.
    """
    busy, gaps = split_busy(timeline), find_gaps(timeline)
    ratio = busy.busy_ns / busy.window_ns if busy.window_ns else 1.0
    waits = [*_gap_findings(timeline, busy, gaps), *_exposed(busy)]
    work = [_kernels(timeline, busy.compute_ns / busy.window_ns, model, device)] if busy.compute_ns else []
    waits.sort(key=lambda finding: -finding.share)
    # A device with gaps is judged by what it waits for, a busy one by its largest part. Launch gaps must be the larger
    # part to come before the work: recording alone widens them.
    work_share = busy.compute_ns / max(busy.window_ns, 1)
    recorded = [found for found in waits if found.cause == "launch_bound" and found.share < _RECORDED * work_share]
    others = [finding for finding in waits if finding not in recorded]
    findings = [*others, *work, *recorded]
    if ratio >= _BUSY:
        findings = sorted([*work, *waits], key=lambda finding: -finding.share)
    if not findings:
        findings = [_finding("undecided", 1 - ratio, "no part of the window stands out", "-", "a longer trace")]
    return Diagnosis(
        sources=(f"trace {timeline.source}",),
        window_s=busy.window_ns / 1e9,
        breakdown=shares(busy, gaps),
        verdict=findings[0].cause,
        findings=tuple(findings),
        gpu_busy_ratio=ratio,
        unseen=("how well kernels use the device while they run: a trace holds no counters",),
        reason=findings[0].evidence,
        notes=(*timeline.notes, *_notes(timeline, busy, gaps), *_steps(timeline, findings[0], model, device)),
    )


def _gap_findings(timeline: Timeline, busy: Busy, gaps: Gaps) -> list[Finding]:
    findings = []
    for name in GAP_PARTS:
        share = gaps.total_s(name) * 1e9 / busy.window_ns if busy.window_ns else 0.0
        if share >= _MIN_SHARE and name != "between queued kernels":
            findings.append(_gap_finding(timeline, busy, gaps, name, share))
    return findings


def _gap_finding(timeline: Timeline, busy: Busy, gaps: Gaps, name: str, share: float) -> Finding:
    seconds = gaps.parts[name]
    count, total = int(np.count_nonzero(seconds)), float(seconds.sum())
    idle = f"the device idles {format_duration(total / 1e9)} in {count} gaps ({percent(share, 1)} of the window)"
    idle += f", the longest {format_duration(float(seconds.max()) / 1e9)}"
    faster = busy.window_ns / max(busy.window_ns - total, busy.busy_ns, 1)
    gain = f"without these gaps the window is {faster:.2g}x shorter"
    if name == "launch gaps":
        return _launch(timeline, gaps, idle, gain, share)
    if name == "input pipeline":
        loads = timeline.loads
        spent = float((loads.end_ns - loads.start_ns).sum()) / 1e9
        loaded = f"{loads.size} loads take {format_duration(spent)} of the host"
        remedy = f"load in the background: more DataLoader workers, pinned memory, prefetching; {gain}"
        test = "feed the same batch again and again: the gaps vanish if loading is the cause"
        return _finding("input_pipeline_bound", share, f"{idle} while the host loads input; {loaded}", remedy, test)
    if name == "host sync":
        calls = _calls_in(timeline, gaps, name)
        cause: Cause = "transfer_bound" if "Memcpy" in calls else "scheduler_bound"
        remedy = f"asynchronous copies from pinned memory, fewer reads of device values on the host; {gain}"
        test = "count the synchronising calls a step with the profiler, and remove one"
        return _finding(cause, share, f"{idle} while the host sits in {calls or 'synchronising calls'}", remedy, test)
    if name == "waiting for an event":
        blocked = _calls_in(timeline, gaps, name)
        held = f"{idle} although work was launched: it waits for an event that no work in this trace explains"
        held += f"; the host meanwhile: {blocked}" if blocked else ""
        remedy = "look at the other stream, device or process that signals the event; more work in flight hides it"
        return _finding("idle_no_work", share, held, remedy, "trace all ranks and streams over the same window")
    if name == "no work":
        nothing = f"{idle} while the host asks for nothing"
        remedy = "more traffic, or a smaller card; nothing to tune on this one"
        return _finding("idle_no_work", share, nothing, remedy, "a trace under twice the load: the gaps should fill")
    why = f"{idle}; what the host did, or the launch of what follows, is not in the trace"
    test = "a trace with CPU operators (torch.profiler) or OS calls (nsys profile --trace=cuda,nvtx,osrt)"
    return _finding("undecided", share, why, "record the host too", test)


def _launch(timeline: Timeline, gaps: Gaps, idle: str, gain: str, share: float) -> Finding:
    seconds = gaps.parts["launch gaps"]
    between_steps = float(seconds[seconds >= _STEP_GAP_NS].sum()) > 0.5 * float(seconds.sum())
    calls = timeline.work_launch[timeline.work_launch >= 0]
    launches = int(np.count_nonzero(np.bincount(calls)))
    each = calls.size / launches if launches else 0.0
    evidence = f"{idle} waiting for the host to launch ({launches} launches, {each:.1f} kernels each)"
    of_prompts = in_prompts_ns(timeline, gaps.start_ns, seconds) / max(float(seconds.sum()), 1.0)
    if 0 < of_prompts < 1:
        evidence += f"; {percent(of_prompts)} of that lies in steps with prompts"
    if between_steps:
        remedy = f"less host work between steps: overlap scheduling with the step, fewer syncs, a faster host; {gain}"
        test = "time the host's code between two steps alone; or a larger batch, which leaves these gaps as they are"
        return _finding("scheduler_bound", share, evidence, remedy, test)
    remedy = f"CUDA graphs, torch.compile or fused kernels, larger batches; {gain}"
    test = "eager against CUDA graphs on the same input: the gaps between kernels should close"
    return _finding("launch_bound", share, evidence, remedy, test)


def _calls_in(timeline: Timeline, gaps: Gaps, part: str) -> str:
    """The host call that covers most of the longest such gap."""
    longest = int(np.argmax(gaps.parts[part]))
    start, end = gaps.start_ns[longest], gaps.end_ns[longest]
    calls = timeline.calls
    if calls.size == 0:
        return ""
    overlap = np.minimum(calls.end_ns, end) - np.maximum(calls.start_ns, start)
    best = int(np.argmax(overlap))
    if overlap[best] < 0.5 * (end - start):
        return ""
    return f"{timeline.name_of(int(calls.name[best]))} ({format_duration(float(overlap[best]) / 1e9)})"


def _exposed(busy: Busy) -> list[Finding]:
    """Communication and copies that no kernel hides."""
    findings = []
    whole = max(busy.window_ns, 1)
    spoken, moved = busy.exposed_communication_ns / whole, busy.exposed_copy_ns / whole
    if spoken >= _MIN_SHARE:
        size = "above" if spoken >= _COMMUNICATION else "below"
        findings.append(
            _finding(
                "communication_bound",
                spoken,
                f"communication that no kernel hides takes {percent(spoken, 1)} of the window ({size} "
                f"the {percent(_COMMUNICATION)} "
                f"at which it counts as the limit); {percent(busy.communication_ns / whole, 1)} in all",
                "less tensor parallelism and more replicas, a faster link, communication overlapped with kernels",
                "the same model on one card fewer, or TP 1 where it fits",
            )
        )
    if moved >= _MIN_SHARE:
        findings.append(
            _finding(
                "transfer_bound",
                moved,
                f"copies that no kernel hides take {percent(moved, 1)} of the window",
                "keep data on the device, pinned memory and asynchronous copies",
                "the same step with inputs already on the device",
            )
        )
    return findings


def _kernels(timeline: Timeline, share: float, model: ModelSpec | None, device: DeviceSpec | None) -> Finding:
    """The device computes: bandwidth or arithmetic, as far as a trace can tell."""
    top = f"kernels take {percent(share, 1)} of the window; {_top_kernels(timeline)}"
    sequences = decode_sequences(timeline)
    steps = None if sequences is None else read_steps(timeline, decode_names(timeline))
    floor = decode_floor_s(model, device, sequences=sequences or 1)
    if sequences is not None and steps is not None and floor is not None and steps.busy_s > 0:
        if floor >= _OF_FLOOR * steps.busy_s:
            return _finding(
                "memory_bandwidth_bound",
                share,
                f"{top}; {describe_steps(steps, sequences, model, device)}",
                "more sequences a step, weights and KV in fewer bits, speculative decoding",
                "a batch-size sweep: step time that hardly grows is bandwidth",
            )
        return _finding(
            "kernel_choice" if sequences < _RIDGE_SEQUENCES else "compute_bound",
            share,
            f"{top}; {describe_steps(steps, sequences, model, device)}: more than memory traffic explains",
            "other kernels for these shapes (attention backend, quantisation format), graphs of fused kernels",
            "a profiler with counters (Nsight Compute) on the longest kernel",
        )
    if sequences is not None and sequences < _RIDGE_SEQUENCES:
        return _finding(
            "memory_bandwidth_bound",
            share,
            f"{top}; the steps decode {sequences} sequences, about {sequences} FLOP for each byte of weights read, "
            "far below what a card computes in that time",
            "more sequences a step, weights and KV in fewer bits, speculative decoding",
            "a batch-size sweep: step time that hardly grows is bandwidth",
        )
    if sequences is None and _decodes(timeline):
        return _finding(
            "undecided", share, f"{top}; steps decode, but how many sequences is not said", "-", "a batch-size sweep"
        )
    return _finding(
        "compute_bound",
        share,
        top,
        "faster kernels, fewer bits, a faster card" + ("" if share >= _BUSY else "; not before the gaps are closed"),
        "a profiler with counters (Nsight Compute): tensor core and memory use of the longest kernel",
    )


def _decodes(timeline: Timeline) -> bool:
    return any("decode" in timeline.name_of(index).lower() for index in timeline.marks.name.tolist())


def _top_kernels(timeline: Timeline) -> str:
    kernels = timeline.work_kind == KERNEL
    spent = (timeline.work_end_ns - timeline.work_start_ns)[kernels]
    total = max(float(spent.sum()), 1.0)
    by_name: Counter[int] = Counter()
    names = timeline.work_name[kernels]
    sums = np.bincount(names, weights=spent.astype(float)) if names.size else np.zeros(0)
    for index in np.argsort(-sums)[:2].tolist():
        by_name[index] = int(sums[index])
    listed = ", ".join(
        f"{timeline.name_of(index)[:48]} {percent(sum_ns / total)}" for index, sum_ns in by_name.most_common() if sum_ns
    )
    return f"most in {listed}" if listed else "no kernel ran"


def _steps(timeline: Timeline, first: Finding, model: ModelSpec | None, device: DeviceSpec | None) -> tuple[str, ...]:
    """The decode steps beside the roofline, unless the verdict says it already."""
    sequences = decode_sequences(timeline)
    if sequences is None:
        return ()
    steps = read_steps(timeline, decode_names(timeline))
    said = "" if steps is None else describe_steps(steps, sequences, model, device)
    return (said,) if said and said not in first.evidence else ()


def _notes(timeline: Timeline, busy: Busy, gaps: Gaps) -> tuple[str, ...]:
    whole = max(busy.window_ns, 1)
    streams = np.count_nonzero(np.diff(np.sort(timeline.work_stream))) + 1
    lines = [
        f"{timeline.work_start_ns.size} pieces of device work on {streams} streams of "
        f"device {timeline.device}; {gaps.size} gaps; busy is the union over streams",
    ]
    if busy.copy_ns:
        copied, seen = percent(busy.copy_ns / whole, 2), percent(busy.exposed_copy_ns / whole, 2)
        lines.append(f"copies {copied} of the window, exposed {seen}")
    return tuple(lines)


def _finding(cause: Cause, share: float, evidence: str, remedy: str, test: str) -> Finding:
    return Finding(cause=cause, share=share, evidence=evidence, remedy=remedy, test=test)
