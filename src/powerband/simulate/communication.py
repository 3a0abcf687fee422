"""Which share of a step goes into all-reduces, and how sure that is."""

import msgspec
import numpy as np

from powerband.records.parallel import ShareVerdict
from powerband.records.value import Interval
from powerband.simulate.step_time import FACTORS, LEAST, StepTime

# Above this share of a step, fewer cards a layer and more replicas serve more (a rule of thumb of serving teams).
LIMIT = 0.30
_AT = FACTORS.index("communication")
_LOOSE = 20.0


def communication_share(step: StepTime, parts: tuple[float, ...]) -> float:
    """Of a step made of ``parts`` (``StepTime.parts``), with the step's factors."""
    total = sum(factor * part for factor, part in zip(step.factors, parts, strict=True))
    return step.factors[_AT] * parts[_AT] / total if total > 0 else 0.0


def draw_factors(step: StepTime, count: int, seed: int = 0) -> list[StepTime]:
    """``count`` step times as they may be by the covariance, each with its residual; always the same ones."""
    rng = np.random.default_rng(seed)
    covariance = np.array(step.covariance)
    drawn = rng.multivariate_normal(np.array(step.factors), covariance, size=count, check_valid="ignore")
    form = np.exp(step.residual * rng.standard_normal(count))
    kept = np.maximum(drawn, np.array(LEAST)) * form[:, None]
    return [msgspec.structs.replace(step, factors=tuple(row.tolist())) for row in kept]


def interval_of(values: list[float]) -> Interval:
    """The central 90 % of draws."""
    low, high = np.percentile(np.array(values), [5.0, 95.0])
    return Interval(low=float(low), high=float(high))


def judge_share(
    tensor: int,
    predicted: tuple[float, Interval],
    measured: tuple[float, Interval],
    source: str,
) -> ShareVerdict:
    """Confirmed where measurement and prediction lie on the same side of LIMIT, undecided where the measurement's own
    interval spans it.
    """
    (expected, expected_interval), (found, found_interval) = predicted, measured
    spans = found_interval.low < LIMIT < found_interval.high
    same = (expected > LIMIT) == (found > LIMIT)
    return ShareVerdict(
        tensor=tensor,
        predicted=expected,
        predicted_interval=expected_interval,
        measured=found,
        measured_interval=found_interval,
        source=source,
        verdict="undecided" if spans else "confirmed" if same else "refuted",
    )


def loosened(step: StepTime) -> StepTime:
    """``step`` for a fit that is to find the communication: where peer access is shut, an all-reduce takes tens of
    times what the datasheet says, which no prediction would allow for.
    """
    covariance = [list(row) for row in step.covariance]
    covariance[_AT][_AT] += _LOOSE**2
    return msgspec.structs.replace(step, covariance=tuple(map(tuple, covariance)))


def with_share(step: StepTime, predicted: float, measured: float) -> StepTime:
    """``step`` with the communication factor that turns a ``predicted`` share of a step into the ``measured`` one; what
    is left of its doubt is a tenth.

    Raises ValueError where nothing was predicted, since then no factor can.
    """
    if not 0 < predicted < 1 or not 0 <= measured < 1:
        raise ValueError(f"a share of {measured} cannot replace one of {predicted}")
    ratio = (measured / (1 - measured)) / (predicted / (1 - predicted))
    factors = [ratio * factor if at == _AT else factor for at, factor in enumerate(step.factors)]
    covariance = [
        [0.0 if _AT in (row, column) else value for column, value in enumerate(values)]
        for row, values in enumerate(step.covariance)
    ]
    covariance[_AT][_AT] = (0.1 * factors[_AT]) ** 2
    return msgspec.structs.replace(
        step, factors=tuple(factors), covariance=tuple(map(tuple, covariance)), basis="measured"
    )
