"""What each untried config is expected to bring, by the predictor and by what trials taught beyond it."""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from powerband.records.config import EngineConfig, Knob
from powerband.records.objective import objective_value
from powerband.records.rounds import Objective
from powerband.records.run import Predicted, Trial
from powerband.records.value import Interval
from powerband.tune.effects import KNOWN, UNKNOWN, Effects

Array = NDArray[np.float64]
Predict = Callable[[EngineConfig], Predicted]

NORMAL_90 = 1.6449  # half-width of a central 90 % interval in standard deviations
OFFSET = 0.1  # added to every value before its logarithm, as a share of the largest: 0 has no logarithm
HEADROOM = 1.02  # above what the offered traffic allows: the window a rate is counted over varies a little


class Values:
    """The knob values that differ from the baseline's, one column each."""

    def __init__(self, configs: Sequence[EngineConfig], baseline: EngineConfig, knobs: Sequence[Knob]) -> None:
        self.baseline = baseline
        self._names = [knob.name for knob in knobs]
        self._columns = {
            pair: place
            for place, pair in enumerate(dict.fromkeys(pair for config in configs for pair in self._changed(config)))
        }

    def features(self, configs: Sequence[EngineConfig]) -> Array:
        """(configs, columns) of 0 and 1."""
        rows = np.zeros((len(configs), len(self._columns)))
        for row, config in enumerate(configs):
            for pair in self._changed(config):
                if pair in self._columns:
                    rows[row, self._columns[pair]] = 1.0
        return rows

    def prior_sd(self, configs: Sequence[EngineConfig], predicted: Sequence[Predicted]) -> Array:
        """Small where the predictor tells a knob's values apart, else wide: 0 effect is then only a guess."""
        told_apart = self._told_apart(configs, predicted)
        return np.array([KNOWN if name in told_apart else UNKNOWN for name, _ in self._columns])

    def _told_apart(self, configs: Sequence[EngineConfig], predicted: Sequence[Predicted]) -> set[str]:
        """Knobs of which two values, all else equal, are predicted differently somewhere in the space."""
        apart: set[str] = set()
        for name in self._names:
            groups: dict[tuple[object, ...], Predicted] = {}
            for config, expected in zip(configs, predicted, strict=True):
                rest = tuple(config.knobs.get(other) for other in self._names if other != name)
                first = groups.setdefault(rest, expected)
                if not _same(first, expected):
                    apart.add(name)
                    break
        return apart

    def _changed(self, config: EngineConfig) -> list[tuple[str, object]]:
        knobs, before = config.knobs, self.baseline.knobs
        return [(name, knobs[name]) for name in self._names if name in knobs and knobs[name] != before.get(name)]


class Outlook:
    """Log-normal beliefs about the objective of each config: exp(N(log_mean, log_sd)) - offset, up to ``ceiling``."""

    def __init__(
        self,
        configs: Sequence[EngineConfig],
        values: Values,
        predict: Predict,
        trials: Sequence[Trial],
        objective: Objective,
    ) -> None:
        done = [trial for trial in trials if trial.status == "done" and trial.measured is not None]
        self._predicted = [predict(config) for config in configs]
        seen = [predict(trial.config) for trial in done]
        measured = [objective_value(trial.measured, objective) for trial in done if trial.measured is not None]
        self.offset = OFFSET * max([*measured, *(p.objective for p in self._predicted), 1e-9])
        effects = Effects(values.prior_sd(configs, self._predicted))
        miss = [
            math.log((value + self.offset) / (max(expected.objective, 0.0) + self.offset))
            for value, expected in zip(measured, seen, strict=True)
        ]
        seen_sd = np.array([self._spread(expected) for expected in seen])
        effects.learn(values.features([trial.config for trial in done]), np.array(miss), seen_sd)
        shift, shift_sd = effects.expect(values.features(configs))
        own_sd = np.array([self._spread(expected) for expected in self._predicted])
        self.log_mean: Array = np.log([max(p.objective, 0.0) + self.offset for p in self._predicted]) + shift
        self.log_sd: Array = np.sqrt(own_sd**2 + shift_sd**2)
        self.ceiling: Array = np.array([_ceiling(expected) for expected in self._predicted])

    def predicted(self, place: int) -> Predicted:
        """The belief about one config, as a prediction with a 90 % interval."""
        middle, sd = self.log_mean[place], self.log_sd[place]
        reach = [math.exp(middle + side * NORMAL_90 * sd) - self.offset for side in (-1, 0, 1)]
        low, value, high = (min(max(x, 0.0), float(self.ceiling[place])) for x in reach)
        return msgspec.structs.replace(
            self._predicted[place], objective=value, interval=Interval(low=low, high=high, level=0.9)
        )

    def _spread(self, expected: Predicted) -> float:
        low, high = (max(end, 0.0) + self.offset for end in (expected.interval.low, expected.interval.high))
        return math.log(high / low) / (2 * NORMAL_90)


def _same(a: Predicted, b: Predicted) -> bool:
    return (a.objective, a.output_tokens_per_s, a.ttft_p50_s, a.tpot_p50_s) == (
        b.objective,
        b.output_tokens_per_s,
        b.ttft_p50_s,
        b.tpot_p50_s,
    )


def _ceiling(expected: Predicted) -> float:
    """What the traffic allows: a rate of good requests cannot pass the rate at which they are offered."""
    if expected.attainment is None:
        return math.inf
    return HEADROOM * expected.objective / expected.attainment if expected.attainment > 0.05 else math.inf
