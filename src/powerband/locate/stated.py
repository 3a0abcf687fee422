"""A diagnosis from stated facts alone: figures of an incident or of an A/B test, no run and no trace.

Each rule is one comparison with its threshold; what the facts do not say stays undecided, with what to measure next.
"""

from collections.abc import Callable

from powerband.locate.log_lines import read_log_lines
from powerband.records.facts import Facts, Pair
from powerband.records.finding import Cause, Diagnosis, Finding, Status
from powerband.records.units import percent

# Differences below this are noise of most benchmarks.
_NOISE = 0.05
# Several cards that bring less than this over one spend the difference on talking to each other.
_SCALES = 1.2
# A prompt this many times the answer: prefill, which is arithmetic, is the larger part of the work.
_PREFILL_HEAVY = 8.0
_NARROW_BITS = 8
# One Python process cannot use more than a core: from here on it is full.
_FULL_CORE = 0.95
_GPU_WAITS = 0.8
_MANY_SEQUENCES = 16
_LAUNCH_SHARE = 0.3
# What a good hit ratio would have served; below it, shared prefixes are computed again.
_HIT = 0.5
_LARGE_PREFIX = 512


def diagnose_facts(facts: Facts) -> Diagnosis:
    """Findings of every rule, the largest first; ``undecided`` where no rule has its facts. Raises nothing."""
    findings = [found for rule in _RULES if (found := rule(facts)) is not None]
    findings.sort(key=lambda finding: (finding.status == "refuted", -finding.share))
    if not findings or findings[0].status == "refuted":
        said = f"; refuted: {findings[0].evidence}" if findings else ""
        findings.insert(
            0,
            _finding("undecided", 1.0, f"the stated facts do not tell{said}", "-", "powerband locate on the engine"),
        )
    return Diagnosis(
        sources=("stated facts",),
        window_s=0.0,
        breakdown=(),
        verdict=findings[0].cause,
        findings=tuple(findings),
        unseen=("the engine itself: nothing was measured here",),
        reason=findings[0].evidence,
        notes=("taken from what was stated; a share is what the stated difference amounts to", *_blamed(facts)),
    )


def _blamed(facts: Facts) -> tuple[str, ...]:
    lines = [] if facts.log is None else read_log_lines(facts.log)
    return tuple(line.says for line in lines if line.cause is None)


def _gain(pair: Pair) -> float:
    return pair.after / pair.before if pair.before > 0 else 1.0


def _lost(gain: float) -> float:
    """The share of the time that the slower way spends beyond the faster."""
    return 1 - min(gain, 1 / gain) if gain > 0 else 1.0


def _cards(facts: Facts) -> Finding | None:
    if facts.one_card is None or not facts.cards or facts.cards < 2:
        return None
    gain = _gain(facts.one_card)
    if gain >= _SCALES:
        return None
    why = f"{facts.cards} cards do {gain:.2f}x the work of one"
    remedy = "fewer cards for each replica, and more replicas"
    return _finding("communication_bound", 1 - gain / facts.cards, why, remedy, "a trace: share of exposed collectives")


def _quantised(facts: Facts) -> Finding | None:
    pair = facts.quantised or facts.quantised_first_token
    if pair is None:
        return None
    gain = _gain(pair)
    if gain >= 1 - _NOISE:
        return None
    what = "first tokens" if pair is facts.quantised_first_token else "tokens"
    why = f"quantised weights give {gain:.2f}x the rate of {what} that plain ones do"
    remedy = "a format with kernels for this card and batch (Marlin, FP8 on cards that have it), or plain weights"
    return _finding("quantisation_overhead", _lost(gain), why, remedy, "the same traffic with plain weights")


def _narrow_prefill(facts: Facts) -> Finding | None:
    """Weight-only quantisation saves memory traffic; prefill is arithmetic, and pays for the dequantising."""
    if facts.weight_bits is None or facts.weight_bits >= _NARROW_BITS or facts.quantised is not None:
        return None
    if not facts.input_tokens or not facts.output_tokens:
        return None
    if facts.input_tokens < _PREFILL_HEAVY * facts.output_tokens:
        return None
    why = f"{facts.weight_bits}-bit weights under prompts of {facts.input_tokens} and answers of {facts.output_tokens}"
    why += ": prefill is most of the work, and dequantising adds to it"
    remedy = "dequantise once for large batches (Marlin and newer kernels do), or 8-bit arithmetic"
    return _finding("quantisation_overhead", 0.5, why, remedy, "time to first token with plain weights")


def _kernel(facts: Facts) -> Finding | None:
    if facts.kernel is None:
        return None
    gain = _gain(facts.kernel)
    if abs(gain - 1) < _NOISE:
        why = f"the other kernel does {gain:.2f}x as much: the choice of kernel is not the cause"
        return _finding("kernel_choice", 0.0, why, "look elsewhere", "done", refuted=True)
    if gain < 1:
        return None
    why = f"the same weights with another kernel give {gain:.2f}x the rate"
    return _finding("kernel_choice", _lost(gain), why, "use the faster kernel", "a trace: the kernels' names")


def _graphs(facts: Facts) -> Finding | None:
    if facts.graphs is None:
        return None
    gain = _gain(facts.graphs)
    if gain < 1 + _NOISE:
        why = f"graphs give {gain:.2f}x: launching is not the cause"
        return _finding("launch_bound", 0.0, why, "look elsewhere", "done", refuted=True)
    why = f"CUDA graphs give {gain:.2f}x the rate of eager mode"
    return _finding("launch_bound", _lost(gain), why, "leave eager mode", "a trace: gaps between kernels")


def _launches(facts: Facts) -> Finding | None:
    share = facts.launch_share
    if share is None and facts.launches_per_step and facts.launch_s and facts.step_s:
        share = facts.launches_per_step * facts.launch_s / facts.step_s
    if share is None or share < _LAUNCH_SHARE:
        return None
    return _finding(
        "launch_bound",
        min(share, 1.0),
        f"launching takes {percent(share)} of a step",
        "CUDA graphs, fused kernels",
        "eager against graphs",
    )


def _prefill_budget(facts: Facts) -> Finding | None:
    if facts.smaller_prefill_budget is None:
        return None
    gain = _gain(facts.smaller_prefill_budget)
    if gain < 1 + _NOISE:
        return None
    why = f"fewer prompt tokens a step bring first tokens {gain:.2f}x as fast: prompts wait for each other's prefill"
    return _finding("head_of_line_blocking", _lost(gain), why, "a smaller token budget a step", "a sweep of the budget")


def _client(facts: Facts) -> Finding | None:
    if facts.sequential is None or (facts.client_concurrency or 2) > 1:
        return None
    gain = _gain(facts.sequential)
    if gain > _SCALES:
        return None
    why = f"the load is what one request at a time gives ({gain:.2f}x): the client never sends a second one"
    return _finding("client_limited", 1.0, why, "raise the client's concurrency", "the same with 8 in flight")


def _host(facts: Facts) -> Finding | None:
    """A card that waits while sequences are there, or a process at the end of its core."""
    full = facts.busiest_process_cores is not None and facts.busiest_process_cores >= _FULL_CORE
    waits = facts.gpu_busy_ratio is not None and facts.gpu_busy_ratio < _GPU_WAITS
    if full and facts.decodes is False:
        why = f"one process uses {facts.busiest_process_cores:.2f} cores and nothing is decoded: "
        why += "prompts are tokenised and handled on one core"
        return _finding(
            "tokenizer_bound", 0.5, why, "more API processes, token ids from the caller", "ids against text"
        )
    if (waits and (facts.sequences or 0) >= _MANY_SEQUENCES) or (full and waits):
        busy = facts.gpu_busy_ratio or 0.0
        why = f"the card works {percent(busy)} of the time with {facts.sequences} sequences at hand: the host is late"
        return _finding(
            "scheduler_bound", 1 - busy, why, "less host work a step, overlapped scheduling", "a host profile"
        )
    if waits and facts.sequences is not None:
        busy = facts.gpu_busy_ratio or 0.0
        why = (
            f"the card works {percent(busy)} of the time with {facts.sequences} sequences: too little "
            f"work for each launch"
        )
        return _finding("launch_bound", 1 - busy, why, "CUDA graphs, larger batches", "eager against graphs")
    return None


def _prefill(facts: Facts) -> Finding | None:
    if facts.first_tokens_come_in_steps:
        why = "first tokens come in steps: prompts are admitted in groups and wait for a place in one"
        return _finding("queueing", 0.5, why, "more prompts a step", "raise the limit on prompts a step")
    if facts.first_token_grows_with_tokens:
        why = "time to first token grows in proportion to the prompt tokens in a step: prefill is arithmetic"
        return _finding("compute_bound", 0.5, why, "cap the rate, reuse prefixes, faster card", "halve the prompts")
    return None


def _speculation(facts: Facts) -> Finding | None:
    """Verifying costs arithmetic, which is free only while memory is what a step waits for."""
    if facts.speculation is None or facts.speculation.before < 1 + _NOISE or facts.speculation.after >= 1 + _NOISE:
        return None
    why = f"speculation gives {facts.speculation.before:.2f}x alone and {facts.speculation.after:.2f}x in batches: "
    why += "in batches the step has no arithmetic to spare"
    return _finding("compute_bound", 0.5, why, "speculate at low load only", "a batch sweep without speculation")


def _prefix(facts: Facts) -> Finding | None:
    if facts.prefix_hit_ratio is None or facts.prefix_hit_ratio >= _HIT:
        return None
    if (facts.shared_prefix_tokens or 0) < _LARGE_PREFIX:
        return None
    why = (
        f"prompts share {facts.shared_prefix_tokens} tokens and {percent(facts.prefix_hit_ratio)} of them hit the cache"
    )
    share = 1 - facts.prefix_hit_ratio
    return _finding("prefix_cache_miss", share, why, "room for the prefixes, routing by prefix", "one session alone")


def _cache(facts: Facts) -> Finding | None:
    if facts.kv_tokens is None or facts.longest_prompt_tokens is None:
        return None
    if facts.kv_tokens >= 2 * facts.longest_prompt_tokens:
        return None
    why = f"the KV cache holds {facts.kv_tokens} tokens and one prompt has {facts.longest_prompt_tokens}"
    return _finding(
        "kv_pressure", 0.5, why, "more memory for the cache (powerband account shows whose it is)", "account"
    )


def _log(facts: Facts) -> Finding | None:
    lines = [] if facts.log is None else read_log_lines(facts.log)
    return next((line.finding() for line in lines if line.cause is not None), None)


_RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    _cards,
    _quantised,
    _narrow_prefill,
    _kernel,
    _graphs,
    _launches,
    _prefill_budget,
    _client,
    _host,
    _prefill,
    _speculation,
    _prefix,
    _cache,
    _log,
)


def _finding(cause: Cause, share: float, evidence: str, remedy: str, test: str, *, refuted: bool = False) -> Finding:
    status: Status = "refuted" if refuted else "suspected"
    return Finding(
        cause=cause, share=min(max(share, 0.0), 1.0), evidence=evidence, remedy=remedy, test=test, status=status
    )
