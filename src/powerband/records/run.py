"""One execution of a workload, the trials made of it, and the promise made before them."""

from typing import Literal

from powerband.records.columns import compute_metrics
from powerband.records.config import Effective, EngineConfig
from powerband.records.memory import EngineReport
from powerband.records.metrics import Distribution, Metrics
from powerband.records.request import RequestTrace
from powerband.records.sample import DeviceSample, EngineSample, HostSample
from powerband.records.slo import Slo
from powerband.records.value import Basis, Interval, Missing, Record
from powerband.records.workload import Workload

Purpose = Literal["baseline", "tune", "verify", "load", "calibrate"]
TrialStatus = Literal["done", "failed", "pruned", "contended", "client_limited"]


class ClientCheck(Record, tag_field="is", tag="client"):
    """Whether the load generator was the limit; a ``limited`` run is reported and not used."""

    verdict: Literal["ok", "limited"]
    reason: str
    schedule_delay_s: Distribution | Missing
    loop_lag_s: Distribution | Missing
    cpu_ratio: float  # of one core, by the busiest client process
    offered_per_s: float | None = None
    sent_per_s: float | None = None


class Contention(Record, tag_field="is", tag="contention"):
    """Whether somebody else's work took the cores the engine needed; such a run says nothing about the engine."""

    contended: bool
    reason: str
    other_cores: float  # mean, of processes that are neither engine nor client


class Provenance(Record, tag_field="is", tag="provenance"):
    """What it takes to run it again."""

    powerband: str
    command: str
    started_at: str  # ISO 8601, UTC
    host: str
    engine_version: str
    python: str


class Run(Record):
    """A workload as it was really served (or simulated): raw evidence, from which conclusions are recomputed."""

    run_id: str
    basis: Basis
    config: EngineConfig
    effective: Effective | Missing
    workload: Workload
    traces: tuple[RequestTrace, ...]
    end_ns: int
    engine_samples: tuple[EngineSample, ...] = ()
    host_samples: tuple[HostSample, ...] = ()
    device_samples: tuple[DeviceSample, ...] = ()
    client: ClientCheck | Missing = Missing(missing="no client took part")
    contention: Contention | Missing = Missing(missing="the host was not watched")
    provenance: Provenance | Missing = Missing(missing="not recorded")
    startup_s: float = 0.0
    notes: tuple[str, ...] = ()
    warm_up: tuple[int, ...] = ()  # requests at once, burst by burst, that a fresh engine had before; empty: not known
    memory: EngineReport | None = None  # what the engine said of its memory when it started; None where it does not

    def metrics(self, slo: Slo | None = None) -> Metrics:
        return compute_metrics(self.traces, slo, self.end_ns)

    @property
    def contended(self) -> bool:
        return isinstance(self.contention, Contention) and self.contention.contended

    @property
    def unfit(self) -> tuple[Literal["contended", "client_limited"], str] | None:
        """Why its figures say nothing about the engine: others took the cores, or the client was the limit."""
        if isinstance(self.contention, Contention) and self.contention.contended:
            return "contended", self.contention.reason
        if isinstance(self.client, ClientCheck) and self.client.verdict == "limited":
            return "client_limited", self.client.reason
        return None


class Response(Record):
    """How a prediction moves when every engine step takes exp(x) times as long, for each x of ``log_step``.

    ``spread`` is the standard deviation of x that the predictor itself claims. Times that no request gave are None.
    """

    spread: float
    log_step: tuple[float, ...]
    objective: tuple[float, ...]
    tpot_p50_s: tuple[float | None, ...]


class Predicted(Record):
    """What a config is expected to do, before it is run; ``objective`` in the units of the objective named.

    Where the objective counts good requests, ``per_request`` is what one of ``requests`` is worth in it, else 0.
    """

    objective: float
    interval: Interval
    output_tokens_per_s: float
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p99_s: float | None = None
    attainment: float | None = None
    basis: Basis = "simulated"
    response: Response | None = None
    requests: int = 0
    per_request: float = 0.0


class Trial(Record):
    """One config tried for a search: what was expected, what came, and why it counts or not."""

    n: int
    purpose: Purpose
    config: EngineConfig
    status: TrialStatus
    predicted: Predicted | None = None
    measured: Metrics | None = None
    run_id: str | None = None
    cause: str | None = None  # why a failed, pruned or unusable trial is one
    engine_seconds: float = 0.0
    startup_s: float = 0.0
