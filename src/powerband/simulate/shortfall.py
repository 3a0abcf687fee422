"""Why a promise is not kept: by how much, whether any load would keep it, and what the card would have to be."""

from powerband.records.metrics import Metrics
from powerband.records.slo import Slo
from powerband.records.units import format_duration, percent
from powerband.records.value import Missing
from powerband.records.workload import Workload
from powerband.simulate.step_time import FACTORS, REQUEST, StepTime

_LIMITS = {
    "weights": "reading the weights: more bandwidth or narrower weights",
    "compute": "arithmetic: more FLOP/s, or a type that the card multiplies faster",
    "small_batch": "arithmetic of few tokens: kernels that are faster on few columns",
    "overhead": "launches and host work: graphs, a faster host",
    "context": "reading the KV cache: more bandwidth or a narrower cache",
    "pairs": "attention over the prompt: more FLOP/s or shorter prompts",
    "communication": "collectives: less tensor parallelism or a faster link",
    "sequence": "host work for each sequence",
    "single": "arithmetic of a lone token",
    "leftover": "arithmetic of tokens beyond a kernel's tile",
    "request": "host time of a request outside the engine's steps",
    "launch": "launches of a step without a graph: graphs for larger steps, a faster host",
}


def explain_shortfall(step: StepTime, workload: Workload, slo: Slo, metrics: Metrics) -> str | None:
    """In words, or None where the promise is kept.

    A threshold that even a request alone on the engine misses cannot be kept at any load; the factor by which the step
    is too long and its largest term say what would help. Else it is the load: how far the request in the attainment's
    place is from the threshold.
    """
    if metrics.attainment is None or metrics.attainment >= slo.attainment or not workload.requests:
        return None
    count = len(workload.requests)
    prompt, answer = workload.input_tokens / count, workload.output_tokens / count
    token = step.parts(sequences=1, context_tokens=prompt + answer / 2, prefill_tokens=0, pairs=0.0, sampled=1)
    prefill = step.parts(
        sequences=0, context_tokens=0.0, prefill_tokens=round(prompt), pairs=prompt * (prompt + 1) / 2, sampled=1
    )
    first = (*prefill[:REQUEST], step.terms.request_s, *prefill[REQUEST + 1 :])
    missed = [
        _impossible(step, name, parts, threshold)
        for name, parts, threshold in (("TPOT", token, slo.tpot_s), ("TTFT", first, slo.ttft_s))
        if threshold is not None
    ]
    impossible = [text for text in missed if text]
    if impossible:
        return "; ".join(impossible)
    found = f"attainment is {percent(metrics.attainment, 1)} against {percent(slo.attainment, 1)}"
    return f"{found}; {_loaded(slo, metrics)}"


def _impossible(step: StepTime, name: str, parts: tuple[float, ...], threshold: float) -> str | None:
    costs = [factor * part for factor, part in zip(step.factors, parts, strict=True)]
    alone = sum(costs)
    if alone <= threshold:
        return None
    largest = max(range(len(costs)), key=costs.__getitem__)
    return (
        f"{name} of {format_duration(threshold)} cannot be kept at any load: a mean request alone takes "
        f"{format_duration(alone)}, {alone / threshold:.2g} times that; {percent(costs[largest] / alone)} of it is "
        f"{_LIMITS[FACTORS[largest]]}"
    )


def _loaded(slo: Slo, metrics: Metrics) -> str:
    """The thresholds against the 90th and 99th percentiles: what waits too long under this load."""
    found = []
    for name, threshold, times in (
        ("TTFT", slo.ttft_s, metrics.ttft_s),
        ("TPOT", slo.tpot_s, metrics.tpot_s),
        ("E2E", slo.e2e_s, metrics.e2e_s),
    ):
        if threshold is not None and not isinstance(times, Missing) and times.p99 > threshold:
            found.append(
                f"{name} p90 {format_duration(times.p90)}, p99 {format_duration(times.p99)} "
                f"against {format_duration(threshold)}"
            )
    unanswered = metrics.dropped + metrics.errors
    if unanswered:
        found.append(f"{unanswered} of {metrics.requests} requests were not answered")
    return "; ".join(found) or "each threshold alone is met by 99 %"
