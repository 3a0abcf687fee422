"""A ladder: from the naive service to a tuned engine, one change a rung, each measured under the same loads."""

from typing import Literal

import msgspec

from powerband.records.config import EngineConfig, Value
from powerband.records.finding import Cause
from powerband.records.hardware import DeviceSpec
from powerband.records.metrics import Metrics
from powerband.records.model import ModelSpec
from powerband.records.rounds import TrafficSummary
from powerband.records.run import Predicted, Provenance
from powerband.records.slo import Slo
from powerband.records.value import Measured, Missing, Record

RungStatus = Literal["done", "failed", "left_out"]


class RungPlan(Record):
    """One rung before it is measured: the ``change`` in words, and the causes on the rung below that it removes.

    ``gated``: it changes the answers, so it is measured and marked, and recommended only after a quality gate.
    ``left_out`` says why it is not run.
    """

    name: str
    change: str
    config: EngineConfig
    removes: tuple[Cause, ...] = ()
    gated: bool = False
    tunes: dict[str, tuple[Value, ...]] = msgspec.field(default_factory=dict)  # knobs that this rung chooses itself
    weights: str = ""  # the scheme that the engine quantises weights with while loading
    left_out: str = ""


class DeviceUse(Record):
    """How the device was used over one run, by the driver's readings and by the model's bytes.

    ``bandwidth_ratio`` (MBU): bytes of weights and KV that the decode steps had to read over what the device could
    have read in the window; ``computed``, since it rests on the model's shape and the requests' times.
    """

    busy_ratio: Measured
    memory_bytes: Measured
    power_w: Measured
    bandwidth_ratio: Measured
    mean_batch: Measured  # sequences decoding, while any was


class Level(Record):
    """One load on one rung: ``concurrency`` requests kept in flight.

    ``metrics`` leaves out the burst that fills the loop and requests that were cut off before they could miss the SLO;
    ``holds``: whether its attainment reaches the promise's target (None without one). ``tokens_per_s`` counts every
    token that arrived once the loop had turned over; ``completed_tokens_per_s``, those of whole answers over the whole
    window, is what ``predicted`` predicts.
    """

    concurrency: int
    trial: int
    run_id: str | None
    predicted: Predicted | None = None
    metrics: Metrics | None = None
    tokens_per_s: float | None = None
    completed_tokens_per_s: float | None = None
    holds: bool | None = None
    use: DeviceUse | None = None
    cause: str | None = None  # why a level has no metrics


class Rung(Record):
    """A rung as it was measured. ``verdict`` is what locate names as its limit under the offered load."""

    n: int
    plan: RungPlan
    status: RungStatus
    levels: tuple[Level, ...] = ()
    offered: int | None = None  # index of the traffic's own load
    best: int | None = None  # index of the load with most output tokens/s that holds the SLO
    verdict: Cause | None = None
    reason: str = ""
    cause: str | None = None  # why it failed or was left out
    startup_s: float = 0.0
    version: str = ""

    @property
    def alone(self) -> Level | None:
        """One request at a time: what latency it gives at best."""
        return next((level for level in self.levels if level.concurrency == 1), None)

    @property
    def at_offered(self) -> Level | None:
        return None if self.offered is None else self.levels[self.offered]

    @property
    def at_best(self) -> Level | None:
        return None if self.best is None else self.levels[self.best]

    @property
    def shown(self) -> Level | None:
        """The load that stands for the rung: the best within the SLO; where none holds it, the traffic's own."""
        return self.at_best or next((x for x in (self.at_offered, self.alone) if x and x.metrics), None)

    @property
    def tokens_per_s(self) -> Measured:
        """Output tokens/s of the load that stands for the rung."""
        level = self.shown
        if level is None or level.tokens_per_s is None:
            return Missing(missing=self.cause or "nothing was measured")
        return level.tokens_per_s


class LadderReport(Record):
    """Everything that a report shows of one ladder; the raw runs lie beside it, named by ``Level.run_id``."""

    session_id: str
    model: ModelSpec | None
    device: DeviceSpec | None
    traffic: TrafficSummary
    concurrency: int
    slo: Slo | None
    rungs: tuple[Rung, ...]
    planned: int
    start_command: str
    chosen: int | None  # Rung.n of what is recommended: the best that needs no gate
    fastest: int | None  # Rung.n of the fastest within the SLO, gated or not
    engine_seconds: float
    stopped_because: str
    provenance: Provenance | Missing
    notes: tuple[str, ...] = ()
