"""The answer of a comparison: keep, revert or undecided, each metric with its interval."""

from typing import Literal

from powerband.records.quality import QualityMetric
from powerband.records.value import Interval, Measured, Record


class Compared(Record):
    """One metric before and after; ``ratio`` is after over before and ``interval`` holds the ratio.

    Where the baseline is 0 the ratio is Missing ("from 0") and there is no interval: a ratio to nothing has no size.
    ``better`` says which way is good; ``verdict`` is for this metric alone.
    """

    name: str
    before: float
    after: float
    ratio: Measured
    interval: Interval | None
    better: Literal["higher", "lower"]
    verdict: Literal["better", "worse", "same", "undecided"]


class QualityResult(Record):
    """Whether the answers are still as good; ``not_needed`` when no changed knob alters them."""

    verdict: Literal["passed", "failed", "undecided", "not_needed", "not_run"]
    reason: str
    perplexity_ratio: float | None = None
    divergence: float | None = None
    agreement: float | None = None
    task: str | None = None
    metrics: tuple[QualityMetric, ...] = ()


class Verdict(Record):
    """Whether to keep a change; ``noise_floor`` is the ratio spread that two equal configs show (half-width, 90 %).

    ``repeats`` is the smaller number of usable runs on either side; runs that were contended, client-limited or
    simulated are ``excluded`` and say why in ``notes``. ``objective`` names the row of ``metrics`` that decided.
    """

    verdict: Literal["keep", "revert", "undecided"]
    reason: str
    metrics: tuple[Compared, ...]
    noise_floor: float | None
    minimum_effect: float
    quality: QualityResult
    repeats: int
    excluded: int = 0
    notes: tuple[str, ...] = ()
    objective: str | None = None
