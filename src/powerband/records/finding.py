"""Where the time went, and why: the parts that sum to the window, and the causes with their evidence."""

from typing import Literal

from powerband.records.value import Interval, Record

Cause = Literal[
    "launch_bound",
    "memory_bandwidth_bound",
    "compute_bound",
    "communication_bound",
    "input_pipeline_bound",
    "tokenizer_bound",
    "scheduler_bound",
    "detokenize_bound",
    "transfer_bound",
    "no_batching",
    "static_batching",
    "queueing",
    "kv_pressure",
    "head_of_line_blocking",
    "prefix_cache_miss",
    "quantisation_overhead",
    "kernel_choice",
    "client_limited",
    "idle_no_work",
    "undecided",
]

Status = Literal["suspected", "confirmed", "refuted"]

# What a share is a share of: the wall time watched, or the summed time of all requests (send queue to last token).
Whole = Literal["window", "request_time"]


class Share(Record):
    """One part of the wall time; ``name`` is a plain word such as prefill, decode, queueing, no work."""

    name: str
    seconds: float
    share: float


class Proof(Record):
    """One test of a cause: what was changed, what that did, and what it says; ``gain`` above 1 is an improvement.

    ``before`` and ``after`` are means of ``metric`` over paired windows, whose name ends in its unit.
    """

    test: str
    cause: Cause
    change: str
    metric: str
    before: float
    after: float
    gain: float
    interval: Interval | None  # None: too few windows, as the reason says
    status: Status
    reason: str
    run_ids: tuple[str, ...] = ()


class Finding(Record):
    """A cause with its size and evidence, the remedy with what it should bring, and the test that would prove it."""

    cause: Cause
    share: float  # of ``of``, 0..1
    evidence: str
    remedy: str
    test: str
    status: Status = "suspected"
    of: Whole = "window"
    proof: Proof | None = None
    setting: str = ""  # the engine's own name of the limit that is waited for, where one was seen to bind


class Diagnosis(Record):
    """What locate says of one run: ``breakdown`` sums to ``window_s``; findings in order of size, the verdict first.

    ``request_breakdown`` splits the mean request: its seconds sum to ``mean_request_s``.
    ``reason`` says in one sentence why the verdict is what it is.
    """

    sources: tuple[str, ...]
    window_s: float
    breakdown: tuple[Share, ...]
    verdict: Cause
    findings: tuple[Finding, ...]
    gpu_busy_ratio: float | None = None
    unseen: tuple[str, ...] = ()  # what was not measured, and why
    reason: str = ""
    request_breakdown: tuple[Share, ...] = ()
    mean_request_s: float | None = None
    notes: tuple[str, ...] = ()  # what was inferred, and from what
    proofs: tuple[Proof, ...] = ()  # every test that was run, those of causes that nobody suspected too
