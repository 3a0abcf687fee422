"""The loop: account, locate, tune, verify; the only place where reasoning meets the world.

Everything it decides follows from its case and the trials in the journal. A session that was killed is resumed by
running the same code again: finished trials are recalled, the rest are measured.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from powerband.case import Case, offered_factor, within_window
from powerband.engines.base import get_engine
from powerband.evaluate import Trials
from powerband.gate import Gate, numerics, to_result
from powerband.knee import scaled_to_knee
from powerband.locate.diagnose import diagnose
from powerband.records.config import EngineConfig
from powerband.records.errors import EngineError, MachineError, PowerbandError, RequestError
from powerband.records.finding import Cause, Diagnosis
from powerband.records.metrics import Metrics
from powerband.records.objective import objective_value
from powerband.records.rounds import LoopReport, Objective, Round, TrafficSummary
from powerband.records.run import Predicted, Provenance, Purpose, Run, Trial
from powerband.records.verdict import QualityResult, Verdict
from powerband.records.workload import Workload
from powerband.simulate.calibrate import fit_step_time
from powerband.simulate.predict import Predictor
from powerband.simulate.step_time import predict_from_datasheet
from powerband.tune.contest import Contest
from powerband.tune.objective import appraisal
from powerband.tune.search import Proposal, Search
from powerband.tune.space import Space
from powerband.verify.compare import compare
from powerband.verify.quality import need_quality

MINIMUM_EFFECT = 0.03  # a smaller gain is not worth a change of settings
_START_S = 3.0  # allowance for a start and the warm-up until one was measured
_LATE_S = 3.0  # and for answers that end after the last arrival, in a config that keeps up
_CALIBRATION_REQUESTS, _CALIBRATION_S = 8, 30.0


class Loop:
    """One session: its case, its trials, and what was learnt so far."""

    gate: Gate | None = None  # judges what alters the answers: settings, where --numerics turns them, and other engines

    def __init__(self, case: Case, trials: Trials, *, known: Sequence[Run] = (), rivals: Sequence["Loop"] = ()) -> None:
        """``known``: runs of other sessions that say how fast this machine is. ``rivals``: loops of other engines with
        the same trials; they serve the same traffic, and the best of all is verified against this one's baseline."""
        self.case, self.trials, self._known, self._rivals = case, trials, tuple(known), tuple(rivals)
        self.objective: Objective = case.objective
        self._notes: list[str] = []
        self._runs: list[Run] = []
        self._beat = 0.0  # the best objective measured so far; a resumed session must not know those to come
        self._rounds: list[Round] = []

    def run(self) -> LoopReport:
        """Do the whole loop.

        Raises RequestError where the budget pays for no trial, EngineError where the naive settings fail, MachineError
        where the host is too busy to measure on.
        """
        try:
            if self.case.request.scale_rate == "auto":
                self.case = self._scaled_to_machine()
            elif self.case.request.scale_rate == "knee":
                self.case = self._scaled_to_knee()
            baseline, before = self._baseline()
            diagnosis = self._diagnose(before)
            best, stopped = self._tune(baseline, diagnosis)
            verdict = self.compare(baseline.config, best.config) if best.n != baseline.n else None
        finally:
            self.trials.close()
        return self._report(baseline, best, before, diagnosis, verdict, stopped)

    def trial_cost_s(self, config: EngineConfig) -> float:
        """What a trial of a config that keeps up costs: the slowest start seen, the arrivals, the last answers."""
        mine = (trial for trial in self.trials.met if trial.config.engine == config.engine)
        starts = [trial.startup_s for trial in mine if trial.startup_s > 0]
        span_s = self.case.workload.span_s or self.case.cut_s / 3
        return max([_START_S, *starts]) + span_s + _LATE_S

    def _scaled_to_machine(self) -> Case:
        """Serve a few requests one at a time; offer a fixed multiple of that rate from here on."""
        case = self.case
        few = Workload(
            requests=case.workload.requests[:_CALIBRATION_REQUESTS],
            source=case.workload.source,
            concurrency=1,
            seed=case.workload.seed,
        )
        trial, run = self.trials.run("calibrate", case.naive, few, "calibrate", cut_s=_CALIBRATION_S)
        if run is None or trial.measured is None or trial.status != "done":
            raise _unusable("the calibration run", trial)
        self._runs.append(run)
        return within_window(case, offered_factor(case, trial.measured.request_rate_per_s))

    def _scaled_to_knee(self) -> Case:
        case, runs, unusable = scaled_to_knee(self.case, self.trials)
        if unusable is not None:
            raise _unusable("a run that looked for the rate to offer", unusable)
        self._runs += runs
        return case

    def _baseline(self, key: str = "baseline") -> tuple[Trial, Run]:
        needed_s = self.trial_cost_s(self.case.naive)
        if self.trials.budget_s < needed_s:
            raise RequestError(
                f"a budget of {self.trials.budget_s:.0f} s does not pay for one trial of about {needed_s:.0f} s",
                hint="raise --budget, or shorten a trial with --window",
            )
        trial, run = self._measure(key, self.case.naive, "baseline")
        if run is None or trial.status != "done":
            raise _unusable("the baseline with the naive settings" + self._foretold(), trial)
        self._runs.append(run)
        if run.memory is not None:
            version = run.provenance.engine_version if isinstance(run.provenance, Provenance) else ""
            self.case = self.case.reconciled(run.config, run.memory, version)
        return trial, run

    def _foretold(self) -> str:
        """What the ledger said before the start, where it said that the naive settings do not fit."""
        ledger = self.case.ledger
        return "" if ledger is None or ledger.fits else f", of which the ledger said: {ledger.shortage},"

    def _tune(self, baseline: Trial, diagnosis: Diagnosis) -> tuple[Trial, str]:
        """Ask, measure, tell, until the searches or their budget end; gives the best trial and why it stopped."""
        if not self.case.engine.restartable:
            return baseline, "this server's settings cannot be changed from here: apply the remedy, then run this again"
        contest = self._contest(baseline, diagnosis)
        self._bar_what_fails(contest, baseline.config)
        while (proposal := contest.ask()) is not None:
            loop = self._of(proposal.config)
            trial, run = self._measure(f"tune-{len(self._rounds) + 1}", proposal.config, "tune", proposal.predicted)
            if run is not None and trial.status == "done":
                loop._runs.append(run)
            contest.tell(trial, loop._predictor())
            self._bar_what_fails(contest, baseline.config)
            self._rounds.append(self._round(proposal, trial, better=contest.best.n == trial.n))
        return contest.best, contest.stopped_because

    def _of(self, config: EngineConfig) -> "Loop":
        """The loop whose engine a config is for."""
        return next((rival for rival in self._rivals if rival.case.engine.name == config.engine), self)

    def _contest(self, baseline: Trial, diagnosis: Diagnosis) -> Contest:
        """This engine's search, and one for every rival whose baseline could be measured under the same traffic."""
        entered = [(self, baseline, diagnosis)]
        for rival in self._rivals:
            name = rival.case.engine.name
            rival.case = replace(rival.case, workload=self.case.workload)
            try:
                trial, run = rival._baseline(f"{name}-baseline")
            except PowerbandError as error:
                self._notes.append(f"{name} took no part: {error.message}")
            else:
                entered.append((rival, trial, rival._diagnose(run)))
        costs_s = [loop.trial_cost_s(loop.case.naive) for loop, _, _ in entered]
        reserved_s = self.case.repeats * (costs_s[0] + max(costs_s))  # this baseline, and whichever engine is best
        return Contest({loop.case.engine.name: loop._search(trial, at, reserved_s) for loop, trial, at in entered})

    def _search(self, baseline: Trial, diagnosis: Diagnosis, reserved_s: float) -> Search:
        case = self.case
        space = Space(
            knobs=case.engine.knobs(),
            complete=case.complete,
            refuses=case.refuses,
            fixed=case.fixed,
            numerics=case.request.numerics,
        )
        return Search(
            space,
            baseline,
            self._predictor(),
            objective=self.objective,
            slo=case.slo,
            causes=_causes(diagnosis),
            trial_cost_s=self.trial_cost_s,
            budget_s=self.trials.left_s - reserved_s,
            reserved_s=reserved_s,
            appraise=appraisal(case.goal, case.cards_of, attainment=case.slo.attainment if case.slo else 1.0),
        )

    def _bar_what_fails(self, contest: Contest, baseline: EngineConfig) -> None:
        """Put the best config so far through the gate; one that does not pass goes, with all that share its numbers."""
        while self.gate is not None:
            best, spent_s = contest.best.config, self.gate.seconds
            quality = self.quality_of(baseline, best)
            contest.charge(self.gate.seconds - spent_s)
            if quality.verdict in ("passed", "not_needed"):
                return
            unfit = numerics(best)
            gone = contest.bar_best(lambda config, unfit=unfit: numerics(config) == unfit)  # type: ignore[misc]
            if gone is not None:
                self._notes.append(f"{gone} was left out: its answers did not pass ({quality.reason})")

    def quality_of(self, before: EngineConfig, after: EngineConfig) -> QualityResult:
        """Whether the answers stay as good: the gate's verdict where the change may alter them and there is a gate."""
        needed = need_quality(before, after, get_engine(after.engine).knobs())
        if needed.verdict == "not_needed" or self.gate is None:
            return needed
        self.trials.close()  # an engine that is kept running would share its cores with the gate's
        try:
            return to_result(self.gate.check(before, after))
        except (EngineError, RequestError) as error:
            return QualityResult(verdict="undecided", reason=f"the gate could not be run: {error.message}")

    def compare(self, before: EngineConfig, after: EngineConfig, *, minimum_effect: float = MINIMUM_EFFECT) -> Verdict:
        """Fresh runs of both, in the order ABBA, so that a drift of the machine falls on both alike."""
        runs: dict[str, list[Run]] = {"before": [], "after": []}
        for repeat in range(1, self.case.repeats + 1):
            sides = [("before", before), ("after", after)]
            for side, config in sides if repeat % 2 else reversed(sides):
                trial, run = self._measure(f"verify-{repeat}-{side}", config, "verify")
                if run is not None and trial.status == "done":
                    runs[side].append(run)
        return compare(
            runs["before"],
            runs["after"],
            slo=self.case.slo,
            minimum_effect=minimum_effect,
            quality=self.quality_of(before, after),
            cards=self._cards(before, after, runs["before"]),
        )

    def _cards(self, before: EngineConfig, after: EngineConfig, runs: Sequence[Run]) -> tuple[int, int] | None:
        """The cards by which a verdict divides the objective; None where it is sought for itself.

        Fewest cards: they count once the promise is kept; before that, what keeps it is better whatever it takes.
        """
        goal, slo = self.case.goal, self.case.slo
        if goal == "speed":
            return None
        if goal == "cards" and slo and any((run.metrics(slo).attainment or 0.0) < slo.attainment for run in runs):
            return None
        return self._of(before).case.cards_of(before), self._of(after).case.cards_of(after)

    def _measure(
        self, key: str, config: EngineConfig, purpose: Purpose, predicted: Predicted | None = None
    ) -> tuple[Trial, Run | None]:
        cut_s = self.case.cut_s
        trial, run = self.trials.run(key, config, self.case.workload, purpose, cut_s=cut_s, predicted=predicted)
        if purpose in ("baseline", "tune") and trial.status == "done" and self.case.goal == "speed":
            self._beat = max(self._beat, _objective(trial.measured, self.objective) or 0.0)
        return trial, run

    def _predictor(self) -> Predictor:
        """Predictions over the whole workload, from the datasheet and everything measured so far."""
        case = self.case
        prior = predict_from_datasheet(case.model, case.device, case.naive)
        return Predictor(
            fit_step_time([*self._known, *self._runs], prior),
            case.workload,
            objective=self.objective,
            slo=case.slo,
            deadline_s=case.cut_s,
            kv_tokens_of=lambda config: ledger.capacity.kv_tokens if (ledger := case.size_of(config)) else None,
            beat=self._beat,
        )

    def _diagnose(self, run: Run) -> Diagnosis:
        case = self.case
        return diagnose(run, ledger=case.ledger_of(run.config), model=case.model, device=case.device, slo=case.slo)

    def _round(self, proposal: Proposal, trial: Trial, *, better: bool) -> Round:
        usable, case = trial.status == "done", self._of(proposal.config).case
        other = {"engine": case.engine.name} if case is not self.case else {}
        return Round(
            n=len(self._rounds) + 1,
            cause=proposal.cause,
            change={**other, **proposal.config.changes_from(case.naive)},
            why=f"{case.engine.name}: {proposal.why}" if self._rivals else proposal.why,
            trial=trial.n,
            predicted=proposal.predicted,
            measured=_objective(trial.measured, self.objective),
            outcome=("better" if better else "not_better") if usable else _outcome_of_unusable(trial),
        )

    def _report(
        self,
        baseline: Trial,
        best: Trial,
        before: Run,
        diagnosis: Diagnosis,
        verdict: Verdict | None,
        stopped: str,
    ) -> LoopReport:
        case, changed, found = self.case, best.n != baseline.n, self._of(best.config)
        chosen = best.config if verdict is not None and verdict.verdict == "keep" else None
        assert isinstance(before.provenance, Provenance)  # a measured run has one
        return LoopReport(
            session_id=self.trials.session_id,
            model=case.model,
            device=case.device,
            traffic=summarise(case.workload),
            slo=case.slo,
            objective=self.objective,
            goal=case.goal,
            ledger=found.case.ledger_of(best.config),
            trials=tuple(self.trials.trials),
            rounds=tuple(self._rounds),
            baseline_trial=baseline.n,
            best_trial=best.n if changed else None,
            diagnosis_before=diagnosis,
            diagnosis_after=found._diagnose(self.trials.evidence(best)) if changed else None,
            verdict=verdict,
            chosen=chosen,
            start_command=(found if chosen else self).case.engine.start_command(chosen or baseline.config),
            budget_s=self.trials.budget_s,
            engine_seconds=self.trials.engine_seconds,
            stopped_because=stopped,
            provenance=before.provenance,
            notes=tuple(dict.fromkeys([*case.notes, *self._notes, *before.notes])),
        )


def summarise(workload: Workload) -> TrafficSummary:
    """The workload's figures for a report."""
    count = len(workload.requests)
    return TrafficSummary(
        source=workload.source,
        scaling=workload.scaling,
        requests=count,
        input_tokens_mean=workload.input_tokens / max(count, 1),
        output_tokens_mean=workload.output_tokens / max(count, 1),
        longest_tokens=workload.longest_tokens,
        request_rate_per_s=workload.request_rate_per_s,
        concurrency=workload.concurrency,
    )


def _causes(diagnosis: Diagnosis) -> list[Cause]:
    return list(dict.fromkeys([diagnosis.verdict, *(finding.cause for finding in diagnosis.findings)]))


def _objective(metrics: Metrics | None, objective: Objective) -> float | None:
    return None if metrics is None else objective_value(metrics, objective)


def _outcome_of_unusable(trial: Trial) -> Literal["failed", "unusable"]:
    return "failed" if trial.status in ("failed", "pruned") else "unusable"


def _unusable(what: str, trial: Trial) -> MachineError:
    if trial.status == "contended":
        return MachineError(f"{what} cannot be trusted: {trial.cause}", hint="end the other work, then --resume")
    if trial.status == "client_limited":
        return MachineError(f"{what} was limited by the load generator: {trial.cause}", hint="lower --scale-rate")
    attached = trial.config.knobs.get("url")  # started by somebody else: no log of it is here
    hint = f"is the server at {attached} up?" if attached else "the engine's log is in the run's folder"
    return EngineError(f"{what} failed: {trial.cause}", hint=hint)
