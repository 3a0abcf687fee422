"""What each config is expected to bring, by the predictor and by what trials taught beyond it."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from powerband.records.config import EngineConfig, Knob
from powerband.records.counting import NORMAL_90, with_counting
from powerband.records.objective import objective_value
from powerband.records.rounds import Objective
from powerband.records.run import Predicted, Response, Trial
from powerband.records.value import Interval
from powerband.tune.effects import KNOWN, NOISE, QUIET, SPEED_CAUSES, UNKNOWN, Effects
from powerband.tune.improvement import SLICES
from powerband.tune.objective import Appraise, as_it_is
from powerband.tune.prune import SURE
from powerband.tune.response import implied_step, response_of, value_at

Array = NDArray[np.float64]
Predict = Callable[[EngineConfig], Predicted]

MODEL_ERROR = 0.05  # of an objective by the curve of a config that was measured (relative)
BIAS = 0.15  # spread of what all curves may be off by together, before any trial (log)
OFFSET = 0.1  # added to a value before its logarithm, as a share of the largest: 0 has none
COUNTING = 0.02  # of a measured objective by the run's finite number of requests (relative)


class Values:
    """The knob values that differ from the baseline's, one column each."""

    def __init__(self, configs: Sequence[EngineConfig], baseline: EngineConfig, knobs: Sequence[Knob]) -> None:
        self.baseline = baseline
        self._names = [knob.name for knob in knobs]
        self._told_apart: set[str] = set()
        self._unknown = {
            knob.name: QUIET if knob.addresses and not SPEED_CAUSES & {*knob.addresses} else UNKNOWN for knob in knobs
        }
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
        """Small where the predictor tells a knob's values apart, or where the adapter says that the knob addresses
        waiting or memory rather than speed; else wide, since 0 effect is then only a guess."""
        self._tell_apart(configs, predicted)
        return np.array([KNOWN if name in self._told_apart else self._unknown[name] for name, _ in self._columns])

    def _tell_apart(self, configs: Sequence[EngineConfig], predicted: Sequence[Predicted]) -> None:
        """Note the knobs of which two values, all else equal, are predicted differently somewhere in the space."""
        for name in self._names:
            groups: dict[tuple[object, ...], Predicted] = {}
            for config, expected in zip(configs, predicted, strict=True):
                rest = tuple(config.knobs.get(other) for other in self._names if other != name)
                first = groups.setdefault(rest, expected)
                if not _same(first, expected):
                    self._told_apart.add(name)
                    break

    def _changed(self, config: EngineConfig) -> list[tuple[str, object]]:
        knobs, before = config.knobs, self.baseline.knobs
        return [(name, knobs[name]) for name in self._names if name in knobs and knobs[name] != before.get(name)]


class Outlook:
    """Beliefs about configs: the log step ratio of each is normal, and its response curve turns that into values.

    ``values``, ``bound`` and ``value_of`` are what ``appraise`` makes of the objective.
    """

    def __init__(
        self,
        configs: Sequence[EngineConfig],
        values: Values,
        predict: Predict,
        trials: Sequence[Trial],
        objective: Objective,
        appraise: Appraise = as_it_is,
    ) -> None:
        self._objective: Objective = objective
        self._configs, self._appraise = configs, appraise
        self._predicted = [predict(config) for config in configs]
        self._curves = [response_of(predicted) for predicted in self._predicted]
        self._features, self._predict = values.features, predict
        self._effects = Effects(values.prior_sd(configs, self._predicted))
        self._bias, self._offset = 0.0, 1e-9
        self._learn(trials)
        self._learn_bias(trials)
        self.mean, self.sd = self._belief(configs, self._curves)
        self.values: Array = np.array(
            [
                appraise(config, self._value_at(curve, mean + sd * SLICES))
                for config, curve, mean, sd in zip(configs, self._curves, self.mean, self.sd, strict=True)
            ]
        )

    def bound(self) -> Array:
        """What each config reaches if its steps are as fast as they may be, with 99 % confidence."""
        fastest = self.mean - SURE * self.sd
        return np.array(
            [
                float(self._appraise(config, self._value_at(curve, at)))
                for config, curve, at in zip(self._configs, self._curves, fastest, strict=True)
            ]
        )

    def predicted(self, place: int) -> Predicted:
        """The belief about one config, as a prediction with a 90 % interval."""
        curve, mean, sd = self._curves[place], self.mean[place], self.sd[place]
        low, middle, high = (float(self._value_at(curve, mean - side * NORMAL_90 * sd)) for side in (-1, 0, 1))
        found = self._predicted[place]
        by_speed = Interval(low=min(low, middle), high=max(high, middle))
        interval = with_counting(middle, by_speed, requests=found.requests, per_request=found.per_request)
        return msgspec.structs.replace(found, objective=middle, interval=interval, response=None)

    def value_of(self, trial: Trial) -> float:
        """The expected worth of a measured config: what was measured and what the curve says of its speed.

        Where the objective is steep (a promise just kept or just missed) one run says little, and the curve more: so
        each counts by its own uncertainty. A config is not best because its trial was lucky.
        """
        measured, by_curve, noise = self._two_views(trial)
        doubt = by_curve.std() + MODEL_ERROR * by_curve.mean()
        worth = float(self._appraise(trial.config, np.array(measured)))
        if noise + doubt == 0:
            return worth
        share = noise**2 / (noise**2 + doubt**2)
        return float(worth + share * (self._appraise(trial.config, by_curve).mean() - worth))

    def _two_views(self, trial: Trial) -> tuple[float, Array, float]:
        """The measured objective, the slices its curve gives at the speed it was measured to have, and its noise."""
        assert trial.measured is not None
        measured = objective_value(trial.measured, self._objective)
        curve = response_of(self._predict(trial.config))
        (mean,), (sd,) = self._belief([trial.config], [curve])
        implied = implied_step(curve, trial.measured, self._objective)
        if implied is not None:
            weight = sd**2 / (sd**2 + NOISE**2)
            mean, sd = mean + weight * (implied - mean), sd * np.sqrt(1 - weight)
        noise = self._value_at(curve, mean + NOISE * SLICES).std() + COUNTING * measured
        return measured, self._value_at(curve, mean + sd * SLICES), float(noise)

    def _value_at(self, curve: Response, log_step: Array) -> Array:
        """The objective by the curve and by how much such curves were off so far."""
        values: Array = np.maximum((value_at(curve, log_step) + self._offset) * np.exp(self._bias) - self._offset, 0.0)
        return values

    def _learn_bias(self, trials: Sequence[Trial]) -> None:
        """How much the measured objective lies above or below the curves at the same speed, over all trials."""
        views = [self._two_views(trial) for trial in trials if trial.status == "done" and trial.measured is not None]
        offset = OFFSET * max([1e-9, *(max(measured, float(by.mean())) for measured, by, _ in views)])
        precision, total = 1 / BIAS**2, 0.0
        for measured, by_curve, noise in views:
            level = float(by_curve.mean()) + offset
            weight = (1 - offset / level) ** 2 / (((noise + float(by_curve.std())) / level) ** 2 + MODEL_ERROR**2)
            total += weight * float(np.log((measured + offset) / level))
            precision += weight
        self._bias, self._offset = total / precision, offset

    def _learn(self, trials: Sequence[Trial]) -> None:
        seen: list[tuple[EngineConfig, float, float]] = []
        for trial in trials:
            if trial.status == "done" and trial.measured is not None:
                curve = response_of(self._predict(trial.config))
                implied = implied_step(curve, trial.measured, self._objective)
                if implied is not None:
                    seen.append((trial.config, implied, curve.spread))
        self._effects.learn(
            self._features([config for config, _, _ in seen]),
            np.array([miss for _, miss, _ in seen]),
            np.array([spread for _, _, spread in seen]),
        )

    def _belief(self, configs: Sequence[EngineConfig], curves: Sequence[Response]) -> tuple[Array, Array]:
        mean, sd = self._effects.expect(self._features(configs))
        spread: Array = np.sqrt(sd**2 + np.array([curve.spread for curve in curves]) ** 2)
        return mean, spread


def _same(a: Predicted, b: Predicted) -> bool:
    return (a.objective, a.output_tokens_per_s, a.ttft_p50_s, a.tpot_p50_s) == (
        b.objective,
        b.output_tokens_per_s,
        b.ttft_p50_s,
        b.tpot_p50_s,
    )
