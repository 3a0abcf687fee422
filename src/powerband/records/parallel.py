"""How a model can be spread over cards: each split with what it is expected to do, and the one to take."""

from typing import Literal

from powerband.records.config import EngineConfig
from powerband.records.value import Basis, Interval, Record


class Communication(Record):
    """Share of a step that all-reduces take, with its interval: of a decode step, of a full prompt step, of the run."""

    decode: float
    prefill: float
    run: float
    interval: Interval  # of ``run``


class SplitFigures(Record):
    """What all ``cards`` of a split do together on the traffic; times of a step and of a request in seconds."""

    output_tokens_per_s: float
    interval: Interval
    decode_step_s: float
    prefill_step_s: float
    all_reduce_s: float  # of one, in the mean decode step
    batch: float  # mean sequences that one replica decodes at once
    communication: Communication
    goodput_per_s: float | None = None
    attainment: float | None = None
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p99_s: float | None = None


class Split(Record):
    """``replicas`` engines of ``tensor`` cards each; ``figures`` is None where it does not fit (``shortage`` says why).

    ``wins``: in what share of the draws of the step time's doubt no other split did better.
    """

    tensor: int
    replicas: int
    config: EngineConfig
    shortage: str = ""
    kv_tokens: int | None = None
    figures: SplitFigures | None = None
    holds: bool | None = None  # the promise; None without one
    wins: float = 0.0

    @property
    def name(self) -> str:
        return f"TP {self.tensor} x DP {self.replicas}"

    @property
    def cards(self) -> int:
        return self.tensor * self.replicas


class ShareVerdict(Record):
    """A measured communication share beside the predicted one: are they on the same side of the limit?"""

    tensor: int
    predicted: float
    predicted_interval: Interval
    measured: float
    measured_interval: Interval
    source: str
    verdict: Literal["confirmed", "refuted", "undecided"]


class ParallelPlan(Record):
    """Splits of ``cards`` devices, the chosen one first where there is one; ``proof`` says how to test the choice."""

    model: str
    device: str
    cards: int
    link: str
    step_basis: Basis
    splits: tuple[Split, ...]
    chosen: str | None
    reason: str
    proof: str
    verdicts: tuple[ShareVerdict, ...] = ()
    notes: tuple[str, ...] = ()
