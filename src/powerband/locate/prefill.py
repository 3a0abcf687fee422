"""Why first tokens are late although a seat was free: prompts ahead, prompts themselves, or work on the host."""

from dataclasses import dataclass

import numpy as np

from powerband.locate.activity import Floats, count_spans
from powerband.locate.breakdown import Parts, prefill_rate
from powerband.locate.device_use import LAUNCHING, STEADY
from powerband.locate.queueing import MIN_SHARE
from powerband.locate.request_time import RequestTime, host_each_s
from powerband.locate.roofline import NEAR_FLOOR, decode_floor_s, prefill_floor_s
from powerband.locate.view import View
from powerband.records.finding import Finding
from powerband.records.units import format_duration, percent

# A prompt this many times the median is long: below it, waiting one's turn is ordinary sharing.
_LONG = 4.0
# How much later a short request must answer behind a long prompt than beside none.
_SLOWER = 3.0
# Medians over fewer requests are anecdotes.
_MIN_REQUESTS = 5
# Prefixes that repeat must make up this share of the prompt tokens before a cache could matter.
_MIN_SHARED = 0.2
# A working prefix cache serves most of what repeats.
_CACHED = 0.5


@dataclass(frozen=True, slots=True)
class HeadOfLine:
    """Seconds that short requests waited, and streams stood, while a long prompt was in service."""

    waited_s: float
    stalled_s: float
    behind_s: float  # median time to first token of short requests behind a long prompt
    clear_s: float | None  # and of those beside none; None: there was none
    long_prompts: int
    long_tokens: int
    median_tokens: int


def find_prefill(view: View, parts: Parts, time: RequestTime) -> list[Finding]:
    """Findings about the time between a seat and the first token."""
    findings = []
    line = read_head_of_line(view, parts)
    if line is not None:
        blocked_s = min(line.waited_s, time.prefill_s) + min(line.stalled_s, time.stalled_s)
        findings += _head_of_line(line, time.share(blocked_s))
    findings += _prefix_cache(view, time)
    # What a narrower cause explains is not counted again as prefill at large.
    share = time.share(time.prefill_s + time.stalled_s) - sum(finding.share for finding in findings)
    if any(finding.cause == "head_of_line_blocking" for finding in findings):
        share = min(share, time.share(parts.prefill_ns / 1e9))  # one's own prompt, not the wait for others'
    findings += _host(view, parts, time)
    if share >= MIN_SHARE:
        launches = _by_idle_card(view, share) or _above_floor(view, parts, share)
        findings.append(launches or _compute(view, time, share))
    return findings


def read_head_of_line(view: View, parts: Parts) -> HeadOfLine | None:
    """Compare short requests behind a long prompt with the rest; None where prompts are alike or too few."""
    streams, start, activity = view.streams, view.service.start_ns, view.activity
    tokens = streams.input_tokens
    if tokens.size < 2 * _MIN_REQUESTS:
        return None
    median = float(np.median(tokens))
    long = tokens >= _LONG * max(median, 1.0)
    short = tokens <= median
    if not long.any() or short.sum() < _MIN_REQUESTS:
        return None
    blocking = (count_spans(activity.edges_ns, start[long], streams.first_ns[long]) > 0).astype(float)
    behind_s = activity.integral_s(blocking * prefill_rate(view, parts), start[short], streams.first_ns[short])
    wait_s = (streams.first_ns[short] - start[short]) / 1e9
    # Behind: at least half of the wait lies under a long prompt; a brush with its end is not being blocked.
    behind = behind_s >= 0.5 * np.maximum(wait_s, 1e-9)
    if behind.sum() < _MIN_REQUESTS:
        return None
    clear_s = float(np.median(wait_s[~behind])) if (~behind).sum() >= _MIN_REQUESTS else None
    return HeadOfLine(
        waited_s=max(float(behind_s[behind].sum()) - (clear_s or 0.0) * int(behind.sum()), 0.0),
        stalled_s=_stalled_under(view, blocking),
        behind_s=float(np.median(wait_s[behind])),
        clear_s=clear_s,
        long_prompts=int(long.sum()),
        long_tokens=int(np.median(tokens[long])),
        median_tokens=int(median),
    )


def _stalled_under(view: View, blocking: Floats) -> float:
    if view.steps is None:
        return 0.0
    gaps = view.gaps
    under = view.activity.integral_s(blocking, gaps.start_ns, gaps.end_ns) > 0
    expected = view.steps.at(gaps.sequences[under]) * gaps.tokens[under]
    return max(float((gaps.seconds[under] - expected).sum()), 0.0)


def _head_of_line(line: HeadOfLine, share: float) -> list[Finding]:
    slower = line.clear_s is None or line.behind_s >= _SLOWER * line.clear_s
    if share < MIN_SHARE or not slower:
        return []
    beside = "" if line.clear_s is None else f", {format_duration(line.clear_s)} beside none"
    evidence = (
        f"short requests take {format_duration(line.behind_s)} to the first token behind one of {line.long_prompts} "
        f"prompts of about {line.long_tokens} tokens (median prompt {line.median_tokens}){beside}"
    )
    brings = "" if line.clear_s is None else f"; their TTFT should fall towards {format_duration(line.clear_s)}"
    return [
        Finding(
            cause="head_of_line_blocking",
            share=share,
            evidence=evidence,
            remedy=f"smaller prefill chunks, shortest prompts first, or long prompts on a replica of their own{brings}",
            test="send the short requests alone: their TTFT should not depend on the load",
            of="request_time",
        )
    ]


def _prefix_cache(view: View, time: RequestTime) -> list[Finding]:
    """Prompts repeat a prefix and the engine computes it again."""
    repeated, total = repeated_tokens(view)
    if total == 0 or repeated < _MIN_SHARED * total:
        return []
    cached = view.counters.cached_tokens
    computed = view.counters.prompt_tokens
    if cached is None and computed is not None:
        cached = max(total - computed, 0.0)  # engines without a cache counter count only the tokens they computed
    if cached is None or cached >= _CACHED * repeated:
        return []
    missed = (repeated - cached) / total
    share = time.share(time.prefill_s + time.stalled_s) * missed
    if share < MIN_SHARE:
        return []
    return [
        Finding(
            cause="prefix_cache_miss",
            share=share,
            evidence=(
                f"{percent(repeated / total)} of the prompt tokens repeat an earlier prefix, the engine reused "
                f"{cached:.0f} of these {repeated:.0f}"
            ),
            remedy=(
                f"turn prefix caching on, or route a prefix to the same replica; about {percent(missed)} less prefill"
            ),
            test="send the workload with unique prefixes: with no cache at work nothing should change",
            of="request_time",
        )
    ]


def repeated_tokens(view: View) -> tuple[int, int]:
    """Prompt tokens that repeat a prefix sent before, and all prompt tokens, of the requests that were answered."""
    seen: set[int] = set()
    repeated = total = 0
    specs = view.run.workload.requests
    for index in view.streams.index[view.streams.started].tolist():
        if not 0 <= index < len(specs):
            continue
        spec = specs[index]
        total += spec.input_tokens
        if spec.prefix_id is not None:
            repeated += min(spec.prefix_tokens, spec.input_tokens) if spec.prefix_id in seen else 0
            seen.add(spec.prefix_id)
    return repeated, total


def _host(view: View, parts: Parts, time: RequestTime) -> list[Finding]:
    """Requests have a seat, the engine is not prefilling, and yet no token comes."""
    share = time.share(time.host_s)
    if share < MIN_SHARE:
        return []
    mean_s = time.host_s / max(time.requests, 1)
    passed = f"{format_duration(mean_s)} of the mean request ({percent(share)}) pass before the engine computes it"
    if not time.from_gauges:
        return [
            Finding(
                cause="undecided",
                share=share,
                evidence=f"{passed}; the engine shows no queue, so tokenizer, scheduler and a full cache look alike",
                remedy="expose the engine's metrics, so that its queue can be told from work on the host",
                test="send fixed token ids instead of text: if the time stays, it is not the tokenizer",
                of="request_time",
            )
        ]
    return [
        Finding(
            cause="tokenizer_bound",
            share=share,
            evidence=f"{passed}: neither running nor waiting by its own gauges{_crowding(view, parts)}",
            remedy=(
                "a faster tokenizer, more tokenizer or API server processes, or token ids sent by the caller; "
                f"TTFT should fall by about {format_duration(mean_s)}"
            ),
            test="send fixed token ids instead of text: the time before the engine should vanish",
            of="request_time",
        )
    ]


def _crowding(view: View, parts: Parts) -> str:
    """Whether the time grows when several are in it: then it is one serial stage."""
    host = host_each_s(view, parts, since_sent=True)
    streams = view.streams
    waiting = view.activity.at(streams.send_ns, view.activity.waiting)
    few, many = host[waiting <= 1], host[waiting >= 3]
    if few.size < _MIN_REQUESTS or many.size < _MIN_REQUESTS:
        return ""
    alone, crowded = float(np.median(few)), float(np.median(many))
    return f"; {format_duration(alone)} when alone, {format_duration(crowded)} when 3 or more arrive together"


def _by_idle_card(view: View, share: float) -> Finding | None:
    """A card without a kernel for half of the time, though requests are in the engine, is waited for by nobody."""
    busy = None if view.use is None else view.use.busy_ratio
    if view.use is None or busy is None or busy >= LAUNCHING or view.activity.served_share < STEADY:
        return None
    return _launching(
        f"prefill takes {percent(share)} of the request time, while {view.use.seen}: it waits for the host", share
    )


def _above_floor(view: View, parts: Parts, share: float) -> Finding | None:
    """Prefill far above its arithmetic and a reading of the weights for each prompt is not what a card computes."""
    prompts = view.streams.input_tokens[view.streams.started]
    if view.device is None or view.device.kind != "gpu" or not prompts.size:
        return None
    arithmetic_s = prefill_floor_s(view.model, view.device, float(prompts.sum()))
    weights_s = decode_floor_s(view.model, view.device, sequences=float(prompts.mean()))
    spent_s = parts.prefill_ns / 1e9
    if arithmetic_s is None or weights_s is None or spent_s <= NEAR_FLOOR * (arithmetic_s + weights_s * prompts.size):
        return None
    floor_s = arithmetic_s + weights_s * prompts.size
    seen = f"prefill takes {percent(share)} of the request time, {format_duration(spent_s)} in all"
    return _launching(
        f"{seen}: {spent_s / floor_s:.1f}x the {format_duration(floor_s)} that {prompts.sum()} prompt tokens, and "
        f"the weights once for each of {prompts.size} prompts, take on {view.device_name}",
        share,
    )


def _launching(evidence: str, share: float) -> Finding:
    return Finding(
        cause="launch_bound",
        share=share,
        evidence=evidence,
        remedy="graphs or compiled code for prefill too, prompts in larger batches, a faster host core",
        test="prompts of twice the length: first tokens should hardly come later",
        of="request_time",
    )


def _compute(view: View, time: RequestTime, share: float) -> Finding:
    tokens = int(view.streams.input_tokens[view.streams.started].sum())
    evidence = f"prefill takes {percent(share)} of the request time for {tokens} prompt tokens"
    busy_s = view.counters.prefill_s
    if busy_s:
        evidence += f", {tokens / busy_s:.0f} tokens/s while prefilling"
        floor = prefill_floor_s(view.model, view.device, tokens)
        if floor is not None:
            evidence += f" ({percent(floor / busy_s)} of the device's peak arithmetic)"
    return Finding(
        cause="compute_bound",
        share=share,
        evidence=evidence,
        remedy="reuse prefixes, shorten prompts, larger prefill batches, faster kernels or 8-bit arithmetic",
        test="halve the prompt lengths: TTFT should halve; a run with one-token prompts shows what is left",
        of="request_time",
    )
