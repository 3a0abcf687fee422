"""The story of one loop: rounds of diagnosis, change, prediction and measurement, and how it ended."""

from typing import Literal

from powerband.records.config import EngineConfig, Value
from powerband.records.finding import Cause, Diagnosis
from powerband.records.hardware import DeviceSpec
from powerband.records.memory import MemoryLedger
from powerband.records.model import ModelSpec
from powerband.records.run import Predicted, Provenance, Trial
from powerband.records.slo import Slo
from powerband.records.value import Record
from powerband.records.verdict import Verdict

# The measured figure: requests/s within the SLO; output tokens/s where no SLO is set; attainment for the fewest cards.
Objective = Literal["goodput_per_s", "output_tokens_per_s", "attainment"]
# What is made of it. speed: the most; cost: the most for each card that the config takes, so the cheapest token;
# cards: the fewest cards that keep the promise.
Goal = Literal["speed", "cost", "cards"]


class Round(Record):
    """One turn: the cause located, the change tried for it, what was predicted and what was measured."""

    n: int
    cause: Cause
    change: dict[str, Value]
    why: str
    trial: int  # Trial.n
    predicted: Predicted | None
    measured: float | None  # the objective
    outcome: Literal["better", "not_better", "failed", "unusable"]


class TrafficSummary(Record):
    """The workload in one line's worth of figures; ``scaling`` says what was changed from the source."""

    source: str
    scaling: str
    requests: int
    input_tokens_mean: float
    output_tokens_mean: float
    longest_tokens: int
    request_rate_per_s: float | None
    concurrency: int | None


class LoopReport(Record):
    """Everything a report shows of one loop; the raw runs lie beside it, named by ``Trial.run_id``."""

    session_id: str
    model: ModelSpec | None  # None: a server we did not start, whose model was not given
    device: DeviceSpec | None
    traffic: TrafficSummary
    slo: Slo | None
    objective: Objective
    ledger: MemoryLedger | None
    trials: tuple[Trial, ...]
    rounds: tuple[Round, ...]
    baseline_trial: int
    best_trial: int | None
    diagnosis_before: Diagnosis
    diagnosis_after: Diagnosis | None
    verdict: Verdict | None
    chosen: EngineConfig | None  # None: nothing better than the baseline is recommended
    start_command: str
    budget_s: float
    engine_seconds: float
    stopped_because: str
    provenance: Provenance
    notes: tuple[str, ...] = ()
    goal: Goal = "speed"
