"""Run the quality gate: serve the reference and the candidate, ask both the same, judge, and remember the verdict."""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from powerband.engines.base import Engine, get_engine
from powerband.engines.hosted import PYTHON
from powerband.load.quality.collect import OnShare, collect_evidence, find_scorer
from powerband.load.quality.judge import judge_answers
from powerband.load.target import Target
from powerband.probes.content import hash_model, package_versions
from powerband.probes.installed import find_llamacpp, find_package, find_vllm
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.quality import Evidence, QualityMetric, QualityReport, QualityTask
from powerband.records.value import known
from powerband.records.verdict import QualityResult
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.quality import load_evidence, load_report, save_evidence, save_report
from powerband.verify.answers import is_right
from powerband.verify.gate import judge_quality
from powerband.verify.limits import limits_for
from powerband.verify.worst import worst_prompts

VERSION = 1  # of the method: evidence and verdicts of another version are not taken for this one's
_NOISE_STEP = 2  # every second prompt and passage is asked again for the noise band
_SLOTS = 4  # served side by side where the settings hold fewer: the gate is not about speed
_HOSTED = {"transformers": ("transformers", "torch"), "openvino": ("openvino-genai",)}  # packages that decide numbers
_CHARACTERS_A_TOKEN = 2  # on the safe side, for the context that a prompt needs

Say = Callable[[str], None]


def _quiet(_: str) -> None:
    return None


def _no_progress(_: float) -> None:
    return None


@dataclass
class Gate:
    """One task and the place where its verdicts are kept; ``seconds`` is what the engines ran for it so far."""

    task: QualityTask
    home: Path
    command: str = ""
    say: Say = _quiet
    on_share: OnShare = _no_progress
    seconds: float = field(default=0.0, init=False)
    reports: list[QualityReport] = field(default_factory=list, init=False)

    def check(self, reference: EngineConfig, candidate: EngineConfig) -> QualityReport:
        """The verdict for this pair: recalled where the same content was judged before, else measured now.

        Raises RequestError where a config cannot serve the task, EngineError where an engine fails.
        """
        if (kept := self.recall(reference, candidate)) is not None:
            self.say(f"quality        recalled: {kept.verdict}, {kept.reason}")
            return kept
        began = time.monotonic()
        before, again, version = self._reference(reference, self._key(reference))
        self.say("quality        the candidate")
        after, _, _ = self._serve(candidate, before, noise=False)
        report = self._report(reference, candidate, before, again, after, version, time.monotonic() - began)
        self.seconds += report.seconds
        self.reports.append(report)
        if (pair := self._pair(reference, candidate)) is not None:
            save_report(self.home, pair, report)
        return report

    def recall(self, reference: EngineConfig, candidate: EngineConfig) -> QualityReport | None:
        """The verdict on the same content from before; None where there is none."""
        pair = self._pair(reference, candidate)
        kept = None if pair is None else load_report(self.home, pair)
        if kept is None:
            return None
        return msgspec.structs.replace(kept, notes=(*kept.notes, "recalled: the same content was judged before"))

    def _pair(self, reference: EngineConfig, candidate: EngineConfig) -> str | None:
        keys = (self._key(reference), self._key(candidate))
        return None if None in keys else _digest([*keys, limits_for(self.task.preset)])

    def _report(
        self,
        reference: EngineConfig,
        candidate: EngineConfig,
        before: Evidence,
        again: Evidence | None,
        after: Evidence,
        version: str,
        seconds: float,
    ) -> QualityReport:
        judged = judge_quality(self.task, before, after, again)
        return QualityReport(
            verdict=judged.verdict,
            reason=judged.reason,
            task=self.task.name,
            preset=self.task.preset,
            metrics=judged.metrics,
            worst=tuple(worst_prompts(self.task, before, after)),
            reference=reference,
            candidate=candidate,
            engine_version=version,
            seconds=seconds,
            command=self.command,
            notes=_notes(judged.metrics),
        )

    def _reference(self, config: EngineConfig, key: str | None) -> tuple[Evidence, Evidence | None, str]:
        """The reference's evidence and that of its second run, kept from before where it was the same content."""
        if key is not None:
            before, again = load_evidence(self.home, key), load_evidence(self.home, f"{key}-again")
            if before is not None and again is not None:
                self.say("quality        the reference, recalled")
                return before, again, before.engine
        self.say("quality        the reference, and every second prompt again for the noise band")
        before, again, version = self._serve(config, None, noise=True)
        if key is not None and again is not None:
            save_evidence(self.home, key, before)
            save_evidence(self.home, f"{key}-again", again)
        return before, again, version

    def _serve(
        self, config: EngineConfig, reference: Evidence | None, *, noise: bool
    ) -> tuple[Evidence, Evidence | None, str]:
        engine = get_engine(config.engine)
        served = serving(engine, config, self.task)
        with tempfile.TemporaryDirectory(prefix="powerband-quality-") as folder:
            running = engine.start(served, Path(folder))
            try:
                target = Target(url=running.url, model=running.model_id, api_key=running.api_key or None)
                scorer = find_scorer(target)
                given = None if reference is None else reference.answers
                evidence = self._judged(
                    collect_evidence(scorer, self.task, engine=running.version, reference=given, on_share=self.on_share)
                )
                if not noise:
                    return evidence, None, running.version
                # The same server, other neighbours in the batch: what differs now is no change of the model's.
                again = collect_evidence(
                    scorer,
                    self.task,
                    engine=running.version,
                    reference=evidence.answers[::_NOISE_STEP],
                    step=_NOISE_STEP,
                    lanes=max(1, scorer.lanes // 2),
                    on_share=self.on_share,
                )
                return evidence, self._judged(again), running.version
            finally:
                running.stop()

    def _judged(self, evidence: Evidence) -> Evidence:
        """With ``right`` set where the task says what is right."""
        task = self.task
        if task.judge is not None:
            answers = judge_answers(task, evidence.answers, evidence.step)
        else:
            asked = task.prompts[:: evidence.step]
            answers = tuple(
                answer
                if prompt.answer is None
                else msgspec.structs.replace(answer, right=is_right(prompt.answer, answer.text))
                for prompt, answer in zip(asked, evidence.answers, strict=True)
            )
        return msgspec.structs.replace(evidence, answers=answers)

    def _key(self, config: EngineConfig) -> str | None:
        """What decides the answers: model content, engine build, settings that alter numbers, and the task asked."""
        engine = get_engine(config.engine)
        content = hash_model(config.model)
        if content is None and engine.restartable and not engine.loads_model:
            content = f"named {config.model}"  # it loads nothing: its settings are all there is
        build = engine_build(config.engine)
        if content is None or build is None:
            return None
        return _digest([VERSION, self.task, content, config.engine, build, sorted(numerics(config).items())])


def numerics(config: EngineConfig) -> dict[str, object]:
    """The knobs that alter the answers, with their values."""
    knobs = get_engine(config.engine).knobs()
    return {knob.name: config.knobs.get(knob.name, knob.naive) for knob in knobs if knob.numerics}


def engine_build(engine: str) -> str | None:
    """The installed engine's version, or its program's size and time; None where it cannot be told from here."""
    if engine == "fake":
        return "fake"
    if engine in _HOSTED and PYTHON in os.environ:
        return package_versions(os.environ[PYTHON], _HOSTED[engine])
    if engine == "llamacpp":
        found = find_llamacpp()
    elif engine == "vllm":
        found = find_vllm()
    else:
        found = find_package(engine.replace("-", "_"))
    if found is None:
        return None
    if found.version:
        return f"{found.name} {found.version}"
    stat = Path(found.path).stat()
    return f"{found.name} {stat.st_size} {stat.st_mtime_ns}"


def serving(engine: Engine, config: EngineConfig, task: QualityTask) -> EngineConfig:
    """``config`` with room for the task; raises RequestError where it cannot serve it."""
    longest = max([len(one.prompt) for one in task.prompts] + [len(text) for text in task.passages], default=0)
    request = RequestSpec(offset_ns=0, input_tokens=longest // _CHARACTERS_A_TOKEN + 256, output_tokens=task.max_tokens)
    workload = Workload(requests=(request,), source=f"quality task {task.name}", concurrency=1)
    slots = {knob.name for knob in engine.knobs()} & {"n_parallel", "slots"}
    more = {name: _SLOTS for name in slots if int(config.knobs.get(name, 1)) < _SLOTS}
    served = engine.complete(config.replace(**more), workload, frozenset())
    reason = engine.refuses(served, workload)
    if reason is not None:
        raise RequestError(f"this config cannot serve the quality task: {reason}", hint="change the knob it names")
    return served


def to_result(report: QualityReport) -> QualityResult:
    """The short form that a verdict carries."""
    by_name = {metric.name: known(metric.value) for metric in report.metrics}
    disagreement = by_name.get("disagreement")
    return QualityResult(
        verdict=report.verdict,
        reason=report.reason,
        perplexity_ratio=by_name.get("perplexity_ratio"),
        divergence=by_name.get("divergence"),
        agreement=None if disagreement is None else 1 - disagreement,
        task=report.task,
        metrics=report.metrics,
    )


def _notes(metrics: tuple[QualityMetric, ...]) -> tuple[str, ...]:
    return tuple(
        f"{one.name.replace('_', ' ')}: the reference differs from itself by more than the limit, which gives way"
        for one in metrics
        if one.noise is not None and one.noise > one.limit
    )


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:24]
