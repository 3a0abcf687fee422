"""Which test proves which cause, with the knobs that this engine has and the traffic at hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from powerband.locate.service import BUDGET_KNOBS
from powerband.records.config import EngineConfig, Knob, Value
from powerband.records.finding import Cause, Diagnosis, Finding
from powerband.records.workload import Workload

Kind = Literal["knobs", "text", "sweep", "rate", "short", "prefix", "clients", "prompts"]
# What is timed: whole requests, first tokens, or those of short prompts.
Metric = Literal["request", "first_token", "short_first_token"]

# Engines' own names of one limit; the value that takes the cause away follows from the value in force.
_SEATS = ("n_parallel", "slots", "max_num_seqs", "max_running_requests", "max_concurrent_requests", "max_batch_size")
_CACHE = ("kv_tokens", "n_ctx", "num_gpu_blocks_override", "max_total_tokens", "max_batch_total_tokens")
_SWITCHES: dict[Cause, dict[str, Value]] = {
    "static_batching": {"cont_batching": True, "static": False},
    "launch_bound": {"enforce_eager": False, "disable_cuda_graph": False, "cuda_graphs": True},
}
_PREFIX: dict[str, Value] = {"cache_prompt": True, "enable_prefix_caching": True, "disable_radix_cache": False}
_PARALLEL = ("tensor_parallel_size", "tp_size", "tp")
_MORE_SEATS, _LEAST_SEATS = 4, 8
_MORE_CACHE, _MORE_TOKENS, _LESS_CHUNK, _LEAST_CHUNK = 4, 4, 4, 64
_LONG = 4.0  # times the median prompt, as in the rule that suspects long ones


@dataclass(frozen=True, slots=True)
class Test:
    """One test: the causes it can judge, and what is changed; ``restart`` where the engine must be started anew."""

    name: str
    kind: Kind
    causes: tuple[Cause, ...]
    change: str
    knobs: Mapping[str, Value] = field(default_factory=dict)
    metric: Metric = "request"

    @property
    def restart(self) -> bool:
        return self.kind == "knobs"


def plan_tests(
    found: Diagnosis, config: EngineConfig, knobs: Sequence[Knob], workload: Workload, *, restartable: bool
) -> tuple[list[Test], list[str]]:
    """The tests worth running, those without a restart first, and a line for each cause that cannot be tested here.

    Text against token ids and the batch sweep are always run: they can find a cause that no rule sees from outside.
    """
    by_name = {knob.name: knob for knob in knobs}
    findings = found.findings
    spent = {part.name: part.share for part in found.request_breakdown}
    of_prompts = spent.get("prefill", 0.0) > spent.get("decode", 0.0)
    decoding: tuple[Cause, ...] = () if of_prompts else ("memory_bandwidth_bound", "compute_bound")
    tests = [
        Test("token ids against text", "text", ("tokenizer_bound",), "prompts as text instead of token ids"),
        Test(
            "batch sweep",
            "sweep",
            ("no_batching", *decoding),
            "1, 2, 4 ... requests at once, short prompts",
        ),
        *_without_restart(findings, workload, of_prompts=of_prompts),
    ]
    untested = []
    covered = {cause for test in tests for cause in test.causes} - {"no_batching"}
    for finding in findings:
        cause = finding.cause
        test = _with_knobs(finding, config, by_name) if restartable else None
        if test is not None:
            tests.append(test)
        elif cause not in covered and cause not in ("undecided", "no_batching"):
            why = "has no knob for it" if restartable else "would have to be restarted with other settings"
            untested.append(f"{cause} was not tested: the engine {why}")
    return sorted(tests, key=lambda test: test.restart), untested


def _without_restart(findings: Sequence[Finding], workload: Workload, *, of_prompts: bool) -> list[Test]:
    causes = {finding.cause for finding in findings}
    tests = []
    if "idle_no_work" in causes:
        tests.append(Test("twice the load", "rate", ("idle_no_work",), "arrivals twice as fast"))
    if "compute_bound" in causes and of_prompts:
        change = "prompts of half the length"
        tests.append(Test("half the prompt", "prompts", ("compute_bound",), change, metric="first_token"))
    if "client_limited" in causes:
        tests.append(Test("two client processes", "clients", ("client_limited",), "client processes 1 -> 2"))
    if "head_of_line_blocking" in causes and long_prompts(workload):
        tests.append(
            Test(
                "short prompts alone",
                "short",
                ("head_of_line_blocking",),
                "the same requests without the long prompts",
                metric="short_first_token",
            )
        )
    if "prefix_cache_miss" in causes:
        tests.append(Test("unique prefixes", "prefix", ("prefix_cache_miss",), "no prompt shares its prefix"))
    return tests


def long_prompts(workload: Workload) -> frozenset[int]:
    """Indexes of the requests whose prompt is several times the median."""
    lengths = sorted(request.input_tokens for request in workload.requests)
    median = lengths[len(lengths) // 2] if lengths else 0
    return frozenset(k for k, r in enumerate(workload.requests) if r.input_tokens >= _LONG * max(median, 1))


def _with_knobs(finding: Finding, config: EngineConfig, knobs: Mapping[str, Knob]) -> Test | None:
    """The test that changes a setting, or None where this engine has none that would take the cause away."""
    cause = finding.cause
    if cause == "queueing" and finding.setting:
        names = (finding.setting,)
        return _scaled("more tokens a step", cause, names, config, knobs, lambda now: now * _MORE_TOKENS)
    if cause in ("no_batching", "queueing"):
        return _scaled("more seats", cause, _SEATS, config, knobs, _more_seats)
    if cause == "kv_pressure":
        return _scaled("a larger cache", cause, _CACHE, config, knobs, lambda now: now * _MORE_CACHE)
    if cause == "head_of_line_blocking":
        test = _scaled("smaller prefill chunks", cause, BUDGET_KNOBS, config, knobs, _smaller_chunk)
        return None if test is None else replace(test, metric="short_first_token")
    if cause == "communication_bound":
        return _scaled("one card", cause, _PARALLEL, config, knobs, lambda now: 1)
    if cause == "prefix_cache_miss":
        return _switched("prefix cache on", cause, _PREFIX, config, knobs)
    if cause in _SWITCHES:
        name = "CUDA graphs" if cause == "launch_bound" else "continuous batching"
        return _switched(name, cause, _SWITCHES[cause], config, knobs)
    return None


def _more_seats(now: int) -> int:
    return max(now * _MORE_SEATS, _LEAST_SEATS)


def _smaller_chunk(now: int) -> int:
    return max(now // _LESS_CHUNK, _LEAST_CHUNK)


def _scaled(
    test: str,
    cause: Cause,
    names: Sequence[str],
    config: EngineConfig,
    knobs: Mapping[str, Knob],
    change: Callable[[int], int],
) -> Test | None:
    """The first of ``names`` that the engine has with a number in force that the change moves."""
    for name in names:
        knob = knobs.get(name)
        if knob is None:
            continue
        now = config.knobs.get(name, knob.naive)
        if isinstance(now, bool) or not isinstance(now, int) or now <= 0:
            continue
        wanted = change(now)
        wanted = min(wanted, int(knob.high)) if knob.high is not None else wanted
        if wanted != now:
            return Test(test, "knobs", (cause,), f"{name} {now} -> {wanted}", {name: wanted})
    return None


def _switched(
    test: str, cause: Cause, wanted: Mapping[str, Value], config: EngineConfig, knobs: Mapping[str, Knob]
) -> Test | None:
    for name, value in wanted.items():
        knob = knobs.get(name)
        now = config.knobs.get(name, knob.naive if knob is not None else value)
        if knob is not None and now != value:
            return Test(test, "knobs", (cause,), f"{name} {_word(now)} -> {_word(value)}", {name: value})
    return None


def _word(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def faster(workload: Workload, factor: float) -> Workload:
    """The same requests, arriving ``factor`` times as fast; a closed loop keeps that many times as many in flight."""
    if workload.concurrency is not None:
        return msgspec.structs.replace(workload, concurrency=max(1, round(workload.concurrency * factor)))
    moved = tuple(msgspec.structs.replace(r, offset_ns=round(r.offset_ns / factor)) for r in workload.requests)
    return msgspec.structs.replace(workload, requests=moved)


def halved(workload: Workload) -> Workload:
    """Prompts of half the length at the same times."""
    short = tuple(
        msgspec.structs.replace(r, input_tokens=max(1, r.input_tokens // 2), prefix_tokens=r.prefix_tokens // 2)
        for r in workload.requests
    )
    return msgspec.structs.replace(workload, requests=short)


def without(workload: Workload, left_out: frozenset[int]) -> Workload:
    kept = tuple(request for k, request in enumerate(workload.requests) if k not in left_out)
    return msgspec.structs.replace(workload, requests=kept)


def unshared(workload: Workload) -> Workload:
    """The same lengths and times, and no two prompts with a common prefix."""
    alone = tuple(
        msgspec.structs.replace(request, prefix_id=None, prefix_tokens=0, block_ids=(), session=None)
        for request in workload.requests
    )
    return msgspec.structs.replace(workload, requests=alone)
