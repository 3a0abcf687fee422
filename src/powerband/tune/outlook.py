"""What each config is expected to bring, by the predictor and by what trials taught beyond it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from powerband.records.config import EngineConfig, Knob
from powerband.records.counting import NORMAL_90, with_counting
from powerband.records.metrics import Metrics
from powerband.records.objective import objective_value
from powerband.records.rounds import Objective
from powerband.records.run import Predicted, Trial
from powerband.records.value import Interval
from powerband.tune.effects import (
    COMMON,
    INTERPLAY,
    KNOWN,
    NOISE,
    QUIET,
    SPEED_CAUSES,
    UNKNOWN,
    Effects,
)
from powerband.tune.improvement import SLICES
from powerband.tune.objective import Appraise, as_it_is
from powerband.tune.prune import SURE
from powerband.tune.response import implied_step, response_of, value_at

Array = NDArray[np.float64]
Predict = Callable[[EngineConfig], Predicted]

MODEL_ERROR = 0.05  # of an objective by the curve of a config that was measured (relative)
BIAS = 0.15  # spread of what all curves may be off by together, before any trial (log)
OFFSET = 0.1  # added to a value before its logarithm, as a share of the largest: 0 has none
READING = 0.01  # of a run's step time, read from its median time per token (log)
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


class View(NamedTuple):
    """A trial as seen from the prediction: the objective, and how much longer (log) its steps took."""

    place: int
    value: float
    step: float | None


class Miss(NamedTuple):
    """By how much a trial's objective missed its config's curve (log), and that figure's own spread; ``share`` of the
    level that is not the offset."""

    place: int
    log: float
    noise: float
    share: float


class Outlook:
    """Beliefs about configs: the log step ratio of each is normal, and its response curve turns that into values.

    One joint belief about those to choose from and those that trials measured: all share the common miss and the
    effects of their knob values, and each has a part of its own, of which only its own trials tell. So what one trial
    had by luck is not taken for its config's. ``values``, ``bound`` and ``value_of`` are what ``appraise`` makes of
    the objective.
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
        self._appraise = appraise
        seen = [(trial.config, trial.measured) for trial in trials if trial.status == "done" and trial.measured]
        tried = {config.key: config for config, _ in seen}
        self._configs = [*configs, *tried.values()]
        self._places = {key: place for place, key in enumerate(tried, len(configs))}
        self._predicted = [predict(config) for config in self._configs]
        self._curves = [response_of(predicted) for predicted in self._predicted]
        views = [self._view(self._places[config.key], measured) for config, measured in seen]
        self.mean, self.sd = self._learn_speeds(values, views)
        self._scale, self._offset = self._learn_scales(views)
        worths = [self._worth(place, self.mean[place] + self.sd[place] * SLICES) for place in range(len(self._configs))]
        self._worths: Array = np.array(worths).reshape(-1, len(SLICES))
        self.values: Array = self._worths[: len(configs)]

    def bound(self) -> Array:
        """What each config reaches if its steps are as fast as they may be, with 99 % confidence."""
        fastest = self.mean - SURE * self.sd
        return np.array([float(self._worth(place, fastest[place])) for place in range(len(self.values))])

    def predicted(self, place: int) -> Predicted:
        """The belief about one config, as a prediction with a 90 % interval."""
        mean, sd = self.mean[place], self.sd[place]
        low, middle, high = (float(self._value_at(place, mean - side * NORMAL_90 * sd)) for side in (-1, 0, 1))
        found = self._predicted[place]
        by_speed = Interval(low=min(low, middle), high=max(high, middle))
        interval = with_counting(middle, by_speed, requests=found.requests, per_request=found.per_request)
        return msgspec.structs.replace(found, objective=middle, interval=interval, response=None)

    def value_of(self, config: EngineConfig) -> float:
        """The expected worth of a config that was measured."""
        return float(self._worths[self._places[config.key]].mean())

    def _worth(self, place: int, log_step: Array) -> Array:
        return self._appraise(self._configs[place], self._value_at(place, log_step))

    def _value_at(self, place: int, log_step: Array) -> Array:
        """The objective by the curve and by how much such curves were off so far."""
        value = value_at(self._curves[place], log_step) + self._offset
        values: Array = np.maximum(value * np.exp(self._scale[place]) - self._offset, 0.0)
        return values

    def _view(self, place: int, measured: Metrics) -> View:
        """What a trial says of its config."""
        value = objective_value(measured, self._objective)
        return View(place, value, implied_step(self._curves[place], measured, self._objective))

    def _learn_speeds(self, values: Values, views: Sequence[View]) -> tuple[Array, Array]:
        """Mean and standard deviation of each config's log step ratio, by all trials' times per token."""
        count, tried = len(self._configs), len(self._places)
        own = np.hypot(INTERPLAY, [curve.spread for curve in self._curves])
        told = np.vstack([np.zeros((count - tried, tried)), np.eye(tried)])
        features = np.hstack([np.ones((count, 1)), values.features(self._configs), told])
        shared = np.concatenate([[COMMON], values.prior_sd(self._configs, self._predicted)])
        effects = Effects(np.concatenate([shared, own[count - tried :]]))
        known = [(view.place, view.step) for view in views if view.step is not None]
        effects.learn(features[[place for place, _ in known]], np.array([step for _, step in known]))
        mean, spread = effects.expect(features)
        return mean, np.hypot(spread, np.where(np.arange(count) < count - tried, own, 0.0))

    def _learn_scales(self, views: Sequence[View]) -> tuple[Array, float]:
        """How far (log) the objective lies above each config's curve at the same speed, and the offset that this is
        meant with: all curves miss together, and that of a config that was measured by its own as well."""
        levels = [self._by_curve(view) for view in views]
        offset = OFFSET * max([1e-9, *(max(view.value, level) for view, (level, _) in zip(views, levels, strict=True))])
        misses = [
            Miss(
                view.place,
                float(np.log((view.value + offset) / (level + offset))),
                COUNTING + noise / (level + offset),
                level / (level + offset),
            )
            for view, (level, noise) in zip(views, levels, strict=True)
        ]
        weights = [(miss.share**2 / (miss.noise**2 + MODEL_ERROR**2), miss.log) for miss in misses]
        bias = sum(weight * log for weight, log in weights) / (1 / BIAS**2 + sum(weight for weight, _ in weights))
        scale = np.full(len(self._configs), bias)
        for place in self._places.values():
            own = [(miss.noise**-2, miss.log - bias) for miss in misses if miss.place == place]
            certain = MODEL_ERROR**-2 + sum(weight for weight, _ in own)
            scale[place] += sum(weight * log for weight, log in own) / certain
        return scale, offset

    def _by_curve(self, view: View) -> tuple[float, float]:
        """What the curve gives at the speed that the trial had, and how sure that is (standard deviation); at the speed
        that is expected, where the trial does not tell."""
        step, spread = view.step, READING
        if step is None:
            step, spread = float(self.mean[view.place]), float(np.hypot(self.sd[view.place], NOISE))
        values = value_at(self._curves[view.place], step + spread * SLICES)
        return float(values.mean()), float(values.std())


def _same(a: Predicted, b: Predicted) -> bool:
    return (a.objective, a.output_tokens_per_s, a.ttft_p50_s, a.tpot_p50_s) == (
        b.objective,
        b.output_tokens_per_s,
        b.ttft_p50_s,
        b.tpot_p50_s,
    )
