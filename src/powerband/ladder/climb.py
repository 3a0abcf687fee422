"""The walk up the ladder: predict, start, measure under several loads, locate, next rung.

Everything follows from the request and the journal: a ladder that was cut off or killed is resumed by walking it again,
and loads that the journal holds are recalled.
"""

from collections.abc import Sequence

import msgspec

from powerband.engines.base import get_engine
from powerband.evaluate import Trials, Watcher
from powerband.ladder.case import LadderCase
from powerband.ladder.judge import compute_use, holds, judged, steady_tokens_per_s
from powerband.ladder.measure import SLACK_S, Clock, OutOfTime, RungServer
from powerband.ladder.predict import Oracle
from powerband.ladder.rungs import plan_rungs
from powerband.locate.diagnose import diagnose
from powerband.loop import summarise
from powerband.records.config import Effective
from powerband.records.ladder import LadderReport, Level, Rung, RungPlan
from powerband.records.metrics import Distribution
from powerband.records.run import Provenance, Run
from powerband.records.units import format_duration, percent
from powerband.records.value import Missing, known
from powerband.stores.base import Store

_ALONE_LIKELY_S = 15.0
_MORE_LOADS = 3  # beyond one request at a time and the traffic's own load
_RISE = 1.03  # a higher load that brings less than this is the last one tried
_WORTH_A_RUNG = 0.01  # of a request's time that tokenising must cost before a pipeline for it is worth measuring
_KV_BYTES = {"u8": 1.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "float32": 4.0, "f32": 4.0, "q8_0": 34 / 32}


class Ladder:
    """One ladder: its case, its journal, the time of this call, and the rungs finished so far."""

    def __init__(
        self, case: LadderCase, store: Store, session_id: str, *, command: str, seconds: float, watcher: Watcher | None
    ) -> None:
        self.case, self._session_id = case, session_id
        self._trials = Trials(
            store,
            session_id,
            get_engine(case.request.engine),
            slo=None,
            budget_s=float("inf"),
            command=command,
            watcher=watcher,
            tolerant=True,
        )
        self._clock, self._oracle = Clock(seconds), Oracle(case)
        self._rungs: list[Rung] = []
        self._planned = 0
        self._cut = False  # the time ended in loads that are extra: their rung stands without them
        self._provenance: Provenance | Missing = Missing(missing="no run was made")
        self._tokenize_s: float | None = None  # of a prompt of mean length, as Transformers' worker measured it

    def climb(self) -> LadderReport:
        """Every rung that the time of this call pays for; ``stopped_because`` says whether it came to the top."""
        plans = plan_rungs(self.case.ask)
        self._planned = len(plans)
        stopped = "the top was reached"
        try:
            for n, plan in enumerate(plans, 1):
                self._rungs.append(self._rung(n, self._settled(plan)))
                if self._cut:
                    raise OutOfTime
        except OutOfTime:
            left = format_duration(max(self._clock.left_s, 0.0))
            stopped = f"the time of this call is used ({left} left do not pay for the next load): --resume goes on"
        return self._report(len(plans), stopped)

    def _settled(self, plan: RungPlan) -> RungPlan:
        """The plan with what the rungs below decide: what tokenising is worth, and which limits the last one takes."""
        if plan.name == "pipelined tokenising":
            return msgspec.structs.replace(plan, left_out=self._tokenizing())
        if plan.left_out or not plan.tunes:
            return plan
        below = self._best_of(plan.config.engine)
        if below is None:
            return msgspec.structs.replace(plan, left_out="no rung of this engine was measured")
        base = msgspec.structs.replace(
            plan, config=below.plan.config, gated=below.plan.gated, weights=below.plan.weights
        )
        offered = self.case.concurrency
        return self._oracle.choose(base, sorted({max(offered // 2, 1), offered, 2 * offered, 4 * offered}))

    def _tokenizing(self) -> str:
        """Why pipelined tokenising is left out: its cost beside a request's time, and how the prompts are sent."""
        alone = self._rungs[0].alone if self._rungs else None
        e2e = alone.metrics.e2e_s if alone is not None and alone.metrics is not None else None
        if self._tokenize_s is None or not isinstance(e2e, Distribution):
            return "what tokenising costs was not measured: the rung below gave no figures"
        share = self._tokenize_s / e2e.mean
        seen = (
            f"tokenising a mean prompt takes {format_duration(self._tokenize_s)}, {percent(share, 2)} of the "
            f"{format_duration(e2e.mean)} of a request alone"
        )
        if share < _WORTH_A_RUNG:
            return f"{seen}: a pipeline for it could not be seen"
        return f"{seen}; prompts are sent as token ids here, so that this rung would measure nothing"

    def _rung(self, n: int, plan: RungPlan) -> Rung:
        if plan.left_out:
            return Rung(n=n, plan=plan, status="left_out", cause=plan.left_out)
        with RungServer(self._trials, self._clock, plan.config) as server:
            levels, runs = self._levels(n, plan, server)
        wanted = 1 if one_at_a_time(plan) else self.case.concurrency
        offered = next(i for i, level in enumerate(levels) if level.concurrency == wanted)
        measured = [level for level in levels if level.metrics is not None]
        run = runs.get(wanted)
        if not measured or run is None:
            cause = levels[offered].cause or next(
                (level.cause for level in levels if level.cause), "nothing was measured"
            )
            return Rung(n=n, plan=plan, status="failed", levels=tuple(levels), offered=offered, cause=cause)
        found = diagnose(
            run,
            ledger=self._oracle.ledger(plan, plan.config),
            model=self.case.model_of(plan),
            device=self.case.device,
            slo=self.case.slo,
        )
        good = [level for level in measured if level.holds is not False]
        best = max(good, key=lambda level: level.tokens_per_s or 0.0, default=None)
        return Rung(
            n=n,
            plan=plan,
            status="done",
            levels=tuple(levels),
            offered=offered,
            best=None if best is None else levels.index(best),
            verdict=found.verdict,
            reason=found.reason,
            startup_s=run.startup_s,
            version=run.provenance.engine_version if isinstance(run.provenance, Provenance) else "",
        )

    def _levels(self, n: int, plan: RungPlan, server: RungServer) -> tuple[list[Level], dict[int, Run]]:
        """One request at a time, the traffic's own load, then higher or lower ones towards the best within the SLO."""
        levels: list[Level] = []
        runs: dict[int, Run] = {}
        wanted = 1 if one_at_a_time(plan) else self.case.concurrency
        waiting = list(dict.fromkeys([1, wanted]))
        if self._trials.recalled(_key(n, wanted)) is None:
            self._clock.need(server.start_s + sum(self._likely_s(plan, load) + SLACK_S for load in waiting))
        for _ in range(len(waiting) + _MORE_LOADS):
            if not waiting:
                break
            try:
                level, run = self._level(n, plan, server, waiting.pop(0))
            except OutOfTime:
                if wanted not in runs:
                    raise
                self._cut = True
                break
            levels.append(level)
            if run is not None:
                runs[level.concurrency] = run
            if level.metrics is None and (level.run_id is None or level.concurrency != 1):
                break  # the engine did not start or died, or the load that matters cannot be used
            more = None
            if not waiting and not one_at_a_time(plan):
                more = next_load(levels, len(self.case.workload.requests) // 2)
            # A resumed ladder starts no engine for what is extra, but on the rung that the time of a call cut short.
            if more is not None and (server.is_up or self._trials.recalled(_key(n, more)) or self._is_last(n)):
                waiting.append(more)
        if all(level.concurrency != wanted for level in levels):
            levels.append(Level(concurrency=wanted, trial=0, run_id=None, cause=levels[-1].cause))
        return levels, runs

    def _is_last(self, n: int) -> bool:
        """Whether no rung above has a load in the journal: every rung begins with one request at a time."""
        return all(self._trials.recalled(_key(above, 1)) is None for above in range(n + 1, self._planned + 1))

    def _level(self, n: int, plan: RungPlan, server: RungServer, load: int) -> tuple[Level, Run | None]:
        key = _key(n, load)
        recalled = self._trials.recalled(key)
        predicted = recalled.predicted if recalled else self._oracle.predict(plan, load)
        trial, run = server.load(
            key, self.case.at(load), self.case.span_s(load), predicted, likely_s=self._likely_s(plan, load)
        )
        if run is None or trial.status != "done":
            cause = trial.cause or trial.status
            return Level(concurrency=load, trial=trial.n, run_id=trial.run_id, predicted=predicted, cause=cause), None
        self._note(plan, run)
        kept = judged(run, self.case.slo)
        metrics = kept.metrics(self.case.slo)
        kv_bytes = _KV_BYTES.get(str(plan.config.knobs.get("kv_cache_dtype", plan.config.knobs.get("dtype", ""))), 2.0)
        level = Level(
            concurrency=load,
            trial=trial.n,
            run_id=run.run_id,
            predicted=predicted,
            metrics=metrics,
            tokens_per_s=steady_tokens_per_s(run),
            completed_tokens_per_s=run.metrics().output_tokens_per_s,
            holds=holds(metrics, self.case.slo),
            use=compute_use(run, self.case.model_of(plan), self.case.device, kv_value_bytes=kv_bytes),
        )
        return level, run

    def _likely_s(self, plan: RungPlan, load: int) -> float:
        """What a load takes: an engine that batches answers its few lone requests long before the window ends."""
        return self.case.span_s(load) if load > 1 or one_at_a_time(plan) else _ALONE_LIKELY_S

    def _note(self, plan: RungPlan, run: Run) -> None:
        """What later rungs and the report need of a run."""
        self._oracle.learn(plan, run)
        if isinstance(self._provenance, Missing):
            self._provenance = run.provenance
        if self._tokenize_s is None and isinstance(run.effective, Effective):
            per_token = run.effective.values.get("tokenize_s_per_token")
            if isinstance(per_token, float):
                requests = self.case.workload.requests
                self._tokenize_s = per_token * self.case.workload.input_tokens / len(requests)

    def _best_of(self, engine: str | None) -> Rung | None:
        """The finished rung with most tokens/s within the SLO; None where none is."""
        done = [rung for rung in self._rungs if rung.status == "done" and rung.plan.config.engine == (engine or "")]
        return max(done, key=_place, default=None)

    def _report(self, planned: int, stopped: str) -> LadderReport:
        case, done = self.case, [rung for rung in self._rungs if rung.status == "done"]
        fastest = max(done, key=_place, default=None)
        chosen = max((rung for rung in done if not rung.plan.gated), key=_place, default=None)
        shown = chosen or fastest
        config = shown.plan.config if shown is not None else plan_rungs(case.ask)[0].config
        return LadderReport(
            session_id=self._session_id,
            model=case.model,
            device=case.device,
            traffic=summarise(case.at(case.concurrency)),
            concurrency=case.concurrency,
            slo=case.slo,
            rungs=tuple(self._rungs),
            planned=planned,
            start_command=get_engine(config.engine).start_command(config),
            chosen=None if chosen is None else chosen.n,
            fastest=None if fastest is None else fastest.n,
            engine_seconds=self._trials.engine_seconds,
            stopped_because=stopped,
            provenance=self._provenance,
            notes=case.notes,
        )


def next_load(levels: Sequence[Level], most: int) -> int | None:
    """How many in flight to try next, if any: double, up to ``most``, while the promise holds and throughput rises.

    Halve while it does not hold; then once the middle of the highest that held and the lowest that broke it.
    """
    last, tried = levels[-1], {level.concurrency for level in levels}
    if last.metrics is None:
        return None
    held = max((level.concurrency for level in levels if level.holds is not False), default=1)
    broke = min((load for load in tried if load > held), default=None)
    if broke is None:
        below = [level.tokens_per_s or 0.0 for level in levels[:-1] if level.concurrency < last.concurrency]
        rises = not below or (last.tokens_per_s or 0.0) >= _RISE * max(below)
        return 2 * last.concurrency if rises and 2 * last.concurrency <= most else None
    load = held + held // 2 if broke == 2 * held else broke // 2 if held <= 1 else 0
    return load if load > 1 and load not in tried else None


def one_at_a_time(plan: RungPlan) -> bool:
    """Whether more requests in flight could only wait longer, so that one at a time is all there is to measure."""
    return plan.config.engine == "transformers" and plan.config.knobs.get("batching", "none") == "none"


def _key(n: int, load: int) -> str:
    return f"rung-{n}-c{load}"


def _place(rung: Rung) -> tuple[bool, float]:
    """Rungs that hold the SLO at some load first, then by tokens/s."""
    return rung.best is not None, known(rung.tokens_per_s) or 0.0
