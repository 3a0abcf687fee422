"""Ask and tell: which config to measure next, and when to stop. It never runs anything."""

from collections.abc import Callable, Sequence

import numpy as np

from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.finding import Cause
from powerband.records.objective import TIE, is_better, objective_value
from powerband.records.rounds import Objective
from powerband.records.run import Predicted, Trial
from powerband.records.slo import Slo
from powerband.records.units import percent
from powerband.records.value import Record
from powerband.tune.failures import survival
from powerband.tune.improvement import expected_improvement
from powerband.tune.objective import Appraise, as_it_is
from powerband.tune.outlook import Outlook, Predict, Values
from powerband.tune.plan import describe_change, describe_effect
from powerband.tune.prune import prune_by_bound
from powerband.tune.space import Pruned, Space

NEAR = 0.85  # among proposals worth this share of the best one's, located causes and fewer changes decide
NOTHING = 0.1  # a best below this share of what the space promises counts as that much: nothing can gain 1 % on 0
RETRIES = 1  # of a config whose trial was spoilt (contended host, limited client)


class Proposal(Record):
    """A config to measure, what it should bring, why it was chosen, and the cause it addresses.

    ``gain_per_s``: the expected gain over the best, for each second of engine time that the trial takes.
    """

    config: EngineConfig
    predicted: Predicted
    why: str
    cause: Cause
    gain_per_s: float = 0.0


class Search:
    """Expected improvement per engine second, over a space of configs, from a predictor and the trials so far.

    ``budget_s`` is engine time for all trials that will be asked for, beside ``reserved_s`` that is kept to verify the
    best and only told; ``trial_cost_s`` says what one takes. A config
    whose expected gain is below ``minimum_gain`` (a share of the best objective) is not worth a trial. ``appraise``
    says what the objective is worth where it is not sought for itself (tune/objective.py).
    Raises RequestError where the baseline was not measured or goodput is wanted without an SLO.
    """

    def __init__(
        self,
        space: Space,
        baseline: Trial,
        predict: Predict,
        objective: Objective,
        slo: Slo | None,
        *,
        causes: Sequence[Cause] = (),
        trial_cost_s: Callable[[EngineConfig], float],
        budget_s: float,
        reserved_s: float = 0.0,
        minimum_gain: float = 0.01,
        appraise: Appraise = as_it_is,
    ) -> None:
        if baseline.measured is None or baseline.status != "done":
            raise RequestError(
                f"trial {baseline.n} is {baseline.status} and cannot be a baseline", hint="measure the baseline first"
            )
        if objective != "output_tokens_per_s" and slo is None:
            raise RequestError("goodput needs an SLO", hint="set --slo, or search for output_tokens_per_s")
        self.stopped_because = ""
        self.best = baseline
        self.trials = [baseline]
        self._objective: Objective = objective
        self._appraise = appraise
        self.best_value = float(appraise(baseline.config, np.array(objective_value(baseline.measured, objective))))
        self._predict = predict
        self._causes, self._cost_of = tuple(causes), trial_cost_s
        self._budget_s, self._reserved_s, self._minimum_gain = budget_s, reserved_s, minimum_gain
        self._knobs = space.turned()
        configs, self._refused = space.configs(baseline.config)
        self._configs = [config for config in configs if config.key != baseline.config.key]
        self._values = Values(self._configs, baseline.config, self._knobs)
        self._bounded: list[Pruned] = []
        self._bars: list[Callable[[EngineConfig], bool]] = []
        self._charged_s = 0.0

    @property
    def pruned(self) -> list[Pruned]:
        """Refused configs, and those that the last ``ask`` found unable to beat the best."""
        return [*self._refused, *self._bounded]

    @property
    def left_s(self) -> float:
        return self._budget_s - self._charged_s - sum(trial.engine_seconds for trial in self.trials[1:])

    def charge(self, seconds: float) -> None:
        """Take engine time that went into something other than trials off the budget."""
        self._charged_s += seconds

    def bar(self, barred: Callable[[EngineConfig], bool]) -> None:
        """Take configs out for good, even if measured already: a faster one may not be advised. Never the baseline."""
        self._bars.append(barred)
        self._choose_best(self._outlook([]))

    def _outlook(self, configs: Sequence[EngineConfig]) -> Outlook:
        return Outlook(configs, self._values, self._predict, self.trials, self._objective, self._appraise)

    def _is_barred(self, config: EngineConfig) -> bool:
        return config.key != self.trials[0].config.key and any(barred(config) for barred in self._bars)

    def ask(self, beat: float = 0.0) -> Proposal | None:
        """The next config to measure, or None with ``stopped_because`` set; ``beat``: the worth of one found elsewhere,
        which has to be beaten too."""
        answer = self._next(beat)
        if isinstance(answer, Proposal):
            return answer
        self.stopped_because = answer
        return None

    def _next(self, beat: float) -> Proposal | str:
        open_ = self._open()
        if not open_:
            return f"every config was tried or refused ({len(self._refused)} refused)"
        costs = np.array([self._cost_of(config) for config in open_])
        if self.left_s < costs.min():
            kept = f" beside {self._reserved_s:.0f} s kept to verify" if self._reserved_s else ""
            return f"{max(self.left_s, 0):.0f} s of the budget are left{kept} and a trial takes {costs.min():.0f} s"
        outlook = self._outlook(open_)
        self._choose_best(outlook)
        best = max(self.best_value, beat)
        self._bounded = prune_by_bound(open_, outlook.bound(), best)
        gain = expected_improvement(outlook.values, best) * np.array([self._survival(config) for config in open_])
        gain[costs > self.left_s] = 0.0
        worth = gain / max(best, float(outlook.values.mean(axis=1).max()) * NOTHING, 1e-12)
        if worth.max() < self._minimum_gain:
            return (
                f"no untried config is expected to gain {percent(self._minimum_gain)}: "
                f"the most promising of {len(open_)} promises {percent(worth.max(), 1)}"
            )
        score = (gain / costs).tolist()
        place = self._choose(open_, score)
        config, predicted = open_[place], outlook.predicted(place)
        cause = self._cause_of(config)
        why = describe_change(config, self.best.config, cause, [knob.name for knob in self._knobs])
        hope = "" if self._worth(config, predicted.objective) > best else "; tried for what it may reach"
        before = self.best.measured
        now = best if self._appraise is as_it_is or before is None else objective_value(before, self._objective)
        return Proposal(
            config=config,
            predicted=predicted,
            cause=cause,
            why=f"{why}: expects {describe_effect(predicted, self._objective, now)}{hope}",
            gain_per_s=score[place],
        )

    def _worth(self, config: EngineConfig, value: float) -> float:
        return float(self._appraise(config, np.array(value)))

    def tell(self, trial: Trial, predict: Predict | None = None) -> None:
        """Add a finished trial; ``predict`` replaces the predictor, recalibrated by it."""
        self.trials.append(trial)
        if predict is not None:
            self._predict = predict
        self._choose_best(self._outlook([]))

    def _choose_best(self, outlook: Outlook) -> None:
        """The measured config with the highest expected value; a tie is settled by the measured figures."""
        usable = [
            trial
            for trial in self.trials
            if trial.status == "done" and trial.measured is not None and not self._is_barred(trial.config)
        ]
        worth = [outlook.value_of(trial.config) for trial in usable]
        near = [trial for trial, value in zip(usable, worth, strict=True) if value >= (1 - TIE) * max(worth)]
        best = near[0]
        for trial in near[1:]:
            if trial.measured and best.measured and is_better(trial.measured, best.measured, self._objective):
                best = trial
        self.best, self.best_value = best, worth[usable.index(best)]

    def _open(self) -> list[EngineConfig]:
        """Configs without a verdict; one whose trial was spoilt may be tried again."""
        settled: set[str] = set()
        spoilt: dict[str, int] = {}
        for trial in self.trials:
            key = trial.config.key
            if trial.status in ("contended", "client_limited"):
                spoilt[key] = spoilt.get(key, 0) + 1
            else:
                settled.add(key)
        return [
            config
            for config in self._configs
            if config.key not in settled and spoilt.get(config.key, 0) <= RETRIES and not self._is_barred(config)
        ]

    def _survival(self, config: EngineConfig) -> float:
        died = [trial.config for trial in self.trials if trial.status == "failed"]
        if not died:
            return 1.0
        lived = [trial.config for trial in self.trials if trial.status not in ("failed", "pruned")]
        return survival(config, lived, died, self._knobs)

    def _choose(self, configs: Sequence[EngineConfig], score: list[float]) -> int:
        """The best score; among near equals the one for the first located cause, then with the fewest changes."""
        enough = NEAR * max(score)
        near = [place for place, value in enumerate(score) if value >= enough]
        return min(near, key=lambda place: (self._cause_rank(configs[place]), self._distance(configs[place]), place))

    def _addressed(self, config: EngineConfig) -> set[Cause]:
        changed = config.changes_from(self.best.config)
        return {cause for knob in self._knobs if knob.name in changed for cause in knob.addresses}

    def _cause_rank(self, config: EngineConfig) -> int:
        addressed = self._addressed(config)
        ranks = [rank for rank, cause in enumerate(self._causes) if cause in addressed]
        return min(ranks, default=len(self._causes))

    def _cause_of(self, config: EngineConfig) -> Cause:
        rank = self._cause_rank(config)
        if rank < len(self._causes):
            return self._causes[rank]
        return min(self._addressed(config), default="undecided")

    def _distance(self, config: EngineConfig) -> int:
        changed = config.changes_from(self.best.config)
        return sum(knob.name in changed for knob in self._knobs)
