"""A diagnosis from operators alone, of a program on the CPU: which kinds of operator its steps spend their time in."""

from collections import Counter

import numpy as np

from powerband.locate.activity import Flags, Floats
from powerband.locate.gaps import union_ns
from powerband.records.finding import Cause, Diagnosis, Finding, Share
from powerband.records.timeline import HostOps, Spans
from powerband.records.units import format_duration, percent

# Operators by what they are for, looked for in this order in the name.
_KINDS = {
    "attention": ("attention", "sdpa"),
    "matrix products": ("::mm", "::addmm", "::bmm", "::baddbmm", "::linear", "::matmul", "::_int_mm", "mkldnn", "gemm",
                        "wrapped_linear", "::conv", "qlinear", "packed"),
    "copies and casts": ("::copy_", "::to", "::_to_copy", "::clone", "::cat", "::contiguous"),
}  # fmt: skip
_OTHER, _BETWEEN = "other operators", "between operators"
# From here on what lies between operators (Python, framework) is worth more than any operator.
_HOST_SHARE = 0.4
_PRODUCTS_SHARE = 0.5


def diagnose_host_ops(seen: HostOps) -> Diagnosis:
    """The window in kinds of operator and what lies between them; it runs from the first step to the last.

    On a CPU the operators are the work: no trace tells memory traffic from arithmetic, so a step that is matrix
    products is judged only as far as that.
    """
    start, end = _window(seen)
    window = max(end - start, 1)
    own = self_ns(seen.ops)
    inside = (seen.ops.start_ns >= start) & (seen.ops.end_ns <= end)
    kinds = [_kind(name) for name in seen.names]
    spent: Counter[str] = Counter(dict.fromkeys((*_KINDS, _OTHER), 0))
    for name, nanoseconds in zip(seen.ops.name[inside].tolist(), own[inside].tolist(), strict=True):
        spent[kinds[name]] += int(nanoseconds)
    covered = union_ns(seen.ops.start_ns[inside], seen.ops.end_ns[inside])
    spent[_BETWEEN] = max(window - covered, 0)
    shares = tuple(Share(name=name, seconds=ns / 1e9, share=ns / window) for name, ns in spent.items())
    finding = _finding(seen, {share.name: share.share for share in shares}, int(np.count_nonzero(inside)))
    return Diagnosis(
        sources=(f"trace {seen.source}",),
        window_s=window / 1e9,
        breakdown=shares,
        verdict=finding.cause,
        findings=(finding,),
        unseen=("the device: the trace holds no device work, the program ran on the CPU",),
        reason=finding.evidence,
        notes=(*seen.notes, *_notes(seen, own, inside)),
    )


def _window(seen: HostOps) -> tuple[int, int]:
    spans = seen.steps if seen.steps.size else seen.ops
    return int(spans.start_ns.min()), int(spans.end_ns.max())


def self_ns(ops: Spans) -> Floats:
    """Each operator's time less that of the operators it called; ``ops`` sorted by start, of one thread."""
    own = (ops.end_ns - ops.start_ns).astype(float)
    open_ops: list[int] = []
    starts, ends = ops.start_ns.tolist(), ops.end_ns.tolist()
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while open_ops and ends[open_ops[-1]] <= start:
            open_ops.pop()
        if open_ops:
            own[open_ops[-1]] -= min(end, ends[open_ops[-1]]) - start
        open_ops.append(index)
    kept: Floats = np.maximum(own, 0.0)
    return kept


def _kind(name: str) -> str:
    lowered = name.lower()
    return next((kind for kind, words in _KINDS.items() if any(word in lowered for word in words)), _OTHER)


def _finding(seen: HostOps, shares: dict[str, float], count: int) -> Finding:
    steps = max(seen.steps.size, 1)
    each = f"{count / steps:.0f} operators a step" if seen.steps.size else f"{count} operators"
    between = shares[_BETWEEN] + shares[_OTHER]
    products = shares["matrix products"] + shares["attention"]
    cause: Cause = "undecided"
    if shares[_BETWEEN] >= _HOST_SHARE:
        cause, share = "scheduler_bound", shares[_BETWEEN]
        why = f"{percent(share)} of the time lies between operators, in Python and the framework ({each})"
        remedy = "torch.compile, fewer and larger operators, a larger batch"
        test = "double the batch: time between operators stays as it is"
    elif products >= _PRODUCTS_SHARE:
        share = products
        why = f"{percent(share)} of the time goes to matrix products and attention ({each})"
        why += "; whether memory or arithmetic limits them, operators do not show"
        remedy = "weights in fewer bits help either way; a larger batch helps where memory is the limit"
        test = "double the batch: a step that hardly grows was waiting for memory"
    else:
        share = between
        why = f"{percent(share)} of the time goes to small operators and what lies between them ({each})"
        remedy = "torch.compile or fused operators"
        test = "the same step compiled"
    return Finding(cause=cause, share=min(share, 1.0), evidence=why, remedy=remedy, test=test)


def _notes(seen: HostOps, own: Floats, inside: Flags) -> list[str]:
    names = seen.ops.name[inside]
    sums = np.bincount(names, weights=own[inside]) if names.size else np.zeros(0)
    most = [int(index) for index in np.argsort(-sums)[:5] if sums[index] > 0]
    total = max(float(own[inside].sum()), 1.0)
    lines = [
        f"most of the operators' time: {', '.join(f'{seen.names[i][:40]} {percent(sums[i] / total)}' for i in most)}"
    ]
    if seen.steps.size:
        median = float(np.median(seen.steps.end_ns - seen.steps.start_ns)) / 1e9
        lines.append(f"{seen.steps.size} steps, the median one {format_duration(median)}")
    if seen.others:
        lines.append(f"{seen.others} operators of other threads are not counted")
    return lines
