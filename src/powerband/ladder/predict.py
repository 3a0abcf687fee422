"""What a rung is expected to give before it is measured, and which limits the last rung should take."""

import itertools
from collections.abc import Iterable

import msgspec

from powerband.account.ledger import compute_ledger
from powerband.engines.base import get_engine
from powerband.ladder.case import LadderCase
from powerband.ladder.judge import holds, judged
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.ladder import RungPlan
from powerband.records.memory import MemoryLedger
from powerband.records.run import Predicted, Run
from powerband.records.units import percent
from powerband.simulate.calibrate import fit_step_time
from powerband.simulate.loop import simulate
from powerband.simulate.predict import predict
from powerband.simulate.scheduler import MODELLED, PAGED, Limits, limits_of
from powerband.simulate.step_time import StepTime, predict_from_datasheet

_Family = tuple[str, str, bool]
_FIT_RUNS = 6  # the latest of an engine; more of them say the same
_WORTH = 1.03  # a limit is changed for no less


class Oracle:
    """Predicts loads on rungs from the datasheet and from what the same engine showed on the rungs below."""

    def __init__(self, case: LadderCase) -> None:
        self._case = case
        self._runs: dict[_Family, list[Run]] = {}
        self._seen: dict[bytes, float] = {}  # tokens/s within the SLO by what the simulator knows, of one choice

    def learn(self, plan: RungPlan, run: Run) -> None:
        self._runs.setdefault(_family(plan), []).append(run)

    def predict(self, plan: RungPlan, concurrency: int) -> Predicted | None:
        """None for an engine whose scheduler is not modelled."""
        if plan.config.engine not in MODELLED:
            return None
        return predict(
            plan.config,
            self._case.at(concurrency),
            self._step(plan),
            self._limits(plan, plan.config),
            objective="output_tokens_per_s",
            slo=self._case.slo,
            deadline_s=self._case.span_s(concurrency),
        )

    def ledger(self, plan: RungPlan, config: EngineConfig) -> MemoryLedger | None:
        """None for an engine without memory rules."""
        case = self._case
        # What the engine quantises while loading is a knob of its config, which the ledger reads.
        model = case.model if plan.weights else case.model_of(plan)
        try:
            return compute_ledger(model, case.device, config, traffic=case.workload, remedies=False)
        except RequestError:
            return None

    def choose(self, plan: RungPlan, loads: Iterable[int]) -> RungPlan:
        """The plan with the limits predicted to give most output tokens/s at one of ``loads`` within the SLO.

        Left out where none is predicted to be worth a change; ``plan.config`` is the rung below.
        """
        case, engine = self._case, get_engine(plan.config.engine)
        if plan.config.engine not in MODELLED:
            return msgspec.structs.replace(plan, left_out=f"the scheduler of {plan.config.engine} is not modelled")
        step, loads = self._step(plan), tuple(loads)
        self._seen.clear()
        now = self._best(plan, plan.config, step, loads)
        best, chosen = now, plan.config
        for values in itertools.product(*plan.tunes.values()):
            asked = plan.config.replace(**dict(zip(plan.tunes, values, strict=True)))
            config = engine.complete(asked, case.workload, frozenset())
            if engine.refuses(config, case.workload) is not None:
                continue
            ledger = self.ledger(plan, config)
            if ledger is not None and not ledger.fits:
                continue
            value = self._best(plan, config, step, loads)
            if value > best * (1 if chosen is not plan.config else _WORTH):
                best, chosen = value, config
        if chosen is plan.config:
            why = (
                f"no limit is predicted to bring {percent(_WORTH - 1)} more within the SLO "
                f"({now:,.0f} tokens/s predicted)"
            )
            return msgspec.structs.replace(plan, left_out=why)
        words = ", ".join(f"{name}={chosen.knobs[name]}" for name in plan.tunes if name in chosen.knobs)
        change = f"{words}: predicted {best:,.0f} output tokens/s against {now:,.0f}"
        return msgspec.structs.replace(plan, config=chosen, change=change)

    def _best(self, plan: RungPlan, config: EngineConfig, step: StepTime, loads: tuple[int, ...]) -> float:
        """Most output tokens/s over the loads, those that break the promise left out."""
        case, here, limits = self._case, step.at(config), self._limits(plan, config)
        found = 0.0
        for load in loads:
            # Seats beyond the load change nothing, and nor does a cache that is a little larger.
            kv = None if limits.kv_tokens is None else float(f"{limits.kv_tokens:.1e}")
            seats = min(limits.slots, load)
            key = msgspec.json.encode(
                [here.terms, msgspec.structs.replace(limits, slots=seats, kv_tokens=None), kv, load]
            )
            if key not in self._seen:
                span_s = case.span_s(load)
                run = simulate(config, case.at(load), here, limits, deadline_s=span_s, detailed=False)
                kept = holds(judged(run, case.slo).metrics(case.slo), case.slo) is not False
                self._seen[key] = run.metrics().output_tokens_per_s if kept else 0.0
            found = max(found, self._seen[key])
        return found

    def _step(self, plan: RungPlan) -> StepTime:
        """Fitted to runs of the same engine and weights; else to those of the engine, with the weights of this rung."""
        case = self._case
        model = case.model_of(plan)
        runs = self._runs.get(_family(plan), [])
        if runs:
            return fit_step_time(runs[-_FIT_RUNS:], predict_from_datasheet(model, case.device, plan.config)).at(
                plan.config
            )
        engine, _, eager = _family(plan)
        others = self._runs.get((engine, "", eager), [])
        prior = predict_from_datasheet(case.model, case.device, plan.config)
        fitted = fit_step_time(others[-_FIT_RUNS:], prior) if others else prior
        return msgspec.structs.replace(fitted, model=model).at(plan.config)

    def _limits(self, plan: RungPlan, config: EngineConfig) -> Limits:
        ledger = self.ledger(plan, config) if config.engine in PAGED else None
        return limits_of(config, None if ledger is None else ledger.capacity.kv_tokens)


def _family(plan: RungPlan) -> _Family:
    """Engine, weights where they are not the model's own, and whether kernels are launched one by one: what an eager
    engine's host costs says nothing of one with graphs."""
    weights = plan.weights or (plan.config.model if plan.gated else "")
    return plan.config.engine, weights, plan.config.knobs.get("enforce_eager") is True
