"""What the quality gate looks at: a task, what an engine answered to it, and how far two engines' answers differ."""

from typing import Literal

from powerband.records.config import EngineConfig
from powerband.records.value import Interval, Missing, Record

Preset = Literal["chat", "summarise", "code", "maths"]
Syntax = Literal["none", "python", "json"]
MetricVerdict = Literal["passed", "failed", "undecided"]
GateVerdict = Literal["passed", "failed", "undecided"]


class QualityPrompt(Record):
    """One question; ``answer`` is what counts as right, None where no answer can be told right from wrong."""

    prompt: str
    answer: str | None = None


class QualityTask(Record):
    """What is asked of both engines: ``prompts`` through the chat template, ``passages`` of held-out text as they are.

    ``judge`` is a command that reads ``{"prompt", "answer", "output"}`` as JSON on stdin and exits 0 where the output
    is right; it may take ``judge_timeout_s``. ``scored_tokens`` bounds the positions scored in each text.
    """

    name: str
    preset: Preset
    prompts: tuple[QualityPrompt, ...]
    passages: tuple[str, ...]
    syntax: Syntax = "none"
    judge: str | None = None
    judge_timeout_s: float = 10.0
    max_tokens: int = 128
    scored_tokens: int = 64


class ScoredText(Record):
    """Next-token distributions along one text, as an engine gave them.

    ``tokens`` are those scored; ``logprobs[i]`` is the natural logarithm of the probability of ``tokens[i]`` after all
    before it (None: the engine gave none), ``tops[i]`` the most likely tokens there with theirs, best first.
    """

    tokens: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    tops: tuple[dict[str, float], ...]


class QualityAnswer(Record):
    """One greedy answer; ``ended`` where the model stopped by itself, ``right`` where it could be judged."""

    text: str
    ended: bool
    right: bool | None = None


class Evidence(Record):
    """Everything one engine said about a task, in the order of the task; raw, so that verdicts can be recomputed.

    ``answer_scores`` score the reference's answers after this engine's own chat template. ``scores`` is Missing where
    the engine gives no token probabilities. ``step`` 2 means that every second prompt and passage was asked.
    """

    task: str  # the task's name
    engine: str
    answers: tuple[QualityAnswer, ...]
    answer_scores: tuple[ScoredText, ...] | Missing
    passage_scores: tuple[ScoredText, ...] | Missing
    seconds: float
    step: int = 1
    notes: tuple[str, ...] = ()


class QualityLimit(Record):
    """The most of a metric that a preset stands.

    ``proof``: the whole interval must lie within the limit, as for metrics that many tokens give; else the gate fails
    only where the interval lies beyond it (a share of few prompts proves little). ``source`` says where it comes from.
    """

    metric: str
    most: float
    proof: bool
    source: str


class QualityMetric(Record):
    """One measured difference between candidate and reference; larger is worse for all of them.

    ``noise`` is the upper end of the interval of the same figure for the reference against itself; where it is above
    the limit it takes the limit's place (``allowed``). ``count`` is the number of prompts or passages behind it.
    """

    name: str
    value: float | Missing
    interval: Interval | None
    noise: float | None
    limit: float
    allowed: float
    verdict: MetricVerdict
    count: int


class WorstPrompt(Record):
    """A prompt on which the two differ most, side by side; ``agreement`` is the share of equal first choices."""

    prompt: str
    reference: str
    candidate: str
    divergence: float | None
    agreement: float | None
    why: str


class QualityReport(Record):
    """The gate's answer for one pair, with what it rests on."""

    verdict: GateVerdict
    reason: str
    task: str
    preset: Preset
    metrics: tuple[QualityMetric, ...]
    worst: tuple[WorstPrompt, ...]
    reference: EngineConfig
    candidate: EngineConfig
    engine_version: str
    seconds: float
    command: str = ""
    notes: tuple[str, ...] = ()
