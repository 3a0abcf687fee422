"""A change of settings in words: what, for which cause, and what it should bring."""

from collections.abc import Collection

from powerband.records.config import EngineConfig, Value
from powerband.records.finding import Cause
from powerband.records.rounds import Objective
from powerband.records.run import Predicted
from powerband.records.units import percent
from powerband.records.workload import Workload
from powerband.tune.objective import format_gain, format_value


def describe_change(
    config: EngineConfig, before: EngineConfig, cause: Cause, names: Collection[str] | None = None
) -> str:
    """``n_parallel 1 -> 8, n_batch 512 -> 2048 (for no_batching)``; of the knobs in ``names`` where given."""
    changes = {name: value for name, value in config.changes_from(before).items() if names is None or name in names}
    steps = [f"{name} {_write(before.knobs.get(name))} -> {_write(value)}" for name, value in sorted(changes.items())]
    reason = "" if cause == "undecided" else f" (for {cause})"
    return (", ".join(steps) or "no change") + reason


def describe_effect(predicted: Predicted, objective: Objective, now: float) -> str:
    """The predicted figure, its interval, and how it stands to what is measured now."""
    low, high = predicted.interval.low, predicted.interval.high
    return (
        f"{format_value(predicted.objective, objective)} ({low:.3g} to {high:.3g}, "
        f"{percent(predicted.interval.level)}), "
        f"{format_gain(predicted.objective, now)} against {now:.3g}"
    )


def describe_traffic(workload: Workload) -> str:
    """What traffic a promise holds for: a prompt longer or a rate higher than this was not looked at."""
    count = len(workload.requests)
    if not count:
        return "no traffic"
    longest_in = max(request.input_tokens for request in workload.requests)
    longest_out = max(request.output_tokens for request in workload.requests)
    rate = workload.request_rate_per_s
    when = (
        f"{workload.concurrency} in flight"
        if workload.concurrency is not None
        else "all at once"
        if rate is None
        else f"{rate:.3g} requests/s"
    )
    return (
        f"{when}, prompts of {workload.input_tokens / count:.0f} tokens on average and at most {longest_in}, "
        f"answers of {workload.output_tokens / count:.0f} and at most {longest_out}"
    )


def _write(value: Value | None) -> str:
    if value is None:
        return "default"
    return str(value).lower() if isinstance(value, bool) else str(value)
