"""Readings taken while a run goes on: of the engine's own counters, of the host and of the devices."""

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
    engine_allowed_cores: Measured = Missing(missing="no engine process to watch")  # its affinity: taskset, cpusets


_NOT_GIVEN = Missing(missing="the driver does not give it for this card")


class DeviceSample(Record):
    """One reading of an accelerator; ratios are over the driver's own last interval (NVIDIA: 1/6 s to 1 s).

    ``busy_ratio`` is the share of time in which any kernel ran, not how well it used the card; ``memory_busy_ratio``
    the share in which device memory was read or written. ``throttle`` names why clocks are below what is allowed.
    NVLink counts bytes over all links since the driver was loaded: the difference of two samples is traffic.
    """

    t_ns: int
    index: int
    name: str
    busy_ratio: Measured = _NOT_GIVEN
    memory_busy_ratio: Measured = _NOT_GIVEN
    memory_used_bytes: Measured = _NOT_GIVEN
    memory_bytes: Measured = _NOT_GIVEN
    power_w: Measured = _NOT_GIVEN
    power_limit_w: Measured = _NOT_GIVEN
    temperature_c: Measured = _NOT_GIVEN
    sm_clock_hz: Measured = _NOT_GIVEN
    max_sm_clock_hz: Measured = _NOT_GIVEN
    memory_clock_hz: Measured = _NOT_GIVEN
    throttle: tuple[str, ...] | Missing = _NOT_GIVEN
    pcie_rx_bytes_per_s: Measured = _NOT_GIVEN
    pcie_tx_bytes_per_s: Measured = _NOT_GIVEN
    nvlink_rx_bytes_total: Measured = _NOT_GIVEN
    nvlink_tx_bytes_total: Measured = _NOT_GIVEN
