"""Readings taken while a run goes on: of the engine's own counters and of the host."""

from powerband.records.value import Measured, Missing, Record

_NOT_EXPOSED = Missing(missing="the engine does not expose it")


class EngineSample(Record):
    """One scrape of an engine's metrics, names made equal over engines; counters only ever rise."""

    t_ns: int
    running: Measured = _NOT_EXPOSED
    waiting: Measured = _NOT_EXPOSED
    kv_used_ratio: Measured = _NOT_EXPOSED
    prompt_tokens_total: Measured = _NOT_EXPOSED
    cached_prompt_tokens_total: Measured = _NOT_EXPOSED
    output_tokens_total: Measured = _NOT_EXPOSED
    prefill_seconds_total: Measured = _NOT_EXPOSED
    decode_seconds_total: Measured = _NOT_EXPOSED
    steps_total: Measured = _NOT_EXPOSED
    preemptions_total: Measured = _NOT_EXPOSED
    draft_tokens_total: Measured = _NOT_EXPOSED
    accepted_tokens_total: Measured = _NOT_EXPOSED


class HostSample(Record):
    """CPU use over the interval that ended at ``t_ns``, in cores (2.0 = two cores fully busy)."""

    t_ns: int
    interval_s: float
    cores: int
    engine_cores: Measured
    client_cores: float
    other_cores: float
    steal_cores: float
    engine_rss_bytes: Measured
    available_bytes: int
    engine_switches_per_s: Measured = Missing(missing="no engine process to watch")
