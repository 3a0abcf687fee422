"""Collect the evidence of one server on one task: its answers, and its probabilities along given texts."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

from powerband.load.quality.llamacpp import LlamaCppScorer
from powerband.load.quality.openai import EchoScorer, VllmScorer
from powerband.load.quality.scorer import NoScores, Scorer, Server
from powerband.load.target import Target
from powerband.records.quality import Evidence, QualityAnswer, QualityTask, ScoredText
from powerband.records.value import Missing

Item = TypeVar("Item")
Result = TypeVar("Result")
OnShare = Callable[[float], None]  # is told the share that is done, 0 to 1


def find_scorer(target: Target) -> Scorer:
    """The way in which this server tells token probabilities, found by asking it."""
    server = Server(target)
    if server.has("/props") and server.has("/apply-template", {"messages": [{"role": "user", "content": "hi"}]}):
        return LlamaCppScorer(server)
    if server.has("/tokenize", {"model": target.model, "prompt": "hi"}):
        return VllmScorer(server)
    return EchoScorer(server)


def collect_evidence(
    scorer: Scorer,
    task: QualityTask,
    *,
    engine: str,
    reference: Sequence[QualityAnswer] | None = None,
    step: int = 1,
    lanes: int | None = None,
    on_share: OnShare | None = None,
) -> Evidence:
    """Ask every ``step``-th prompt and passage of ``task`` on at most ``lanes`` lanes at once.

    ``reference`` holds the answers to be scored (of the same prompts); the server's own where None, which makes it
    the reference. Raises EngineError where the server fails.
    """
    began = time.monotonic()
    prompts, passages = task.prompts[::step], task.passages[::step]
    total = len(prompts) * (task.max_tokens + task.scored_tokens) + len(passages) * task.scored_tokens
    run = _Lanes(min(lanes or scorer.lanes, scorer.lanes), max(total, 1), on_share)
    answers = run.map(lambda one, _: scorer.answer(one.prompt, task.max_tokens), prompts, task.max_tokens)
    given = answers if reference is None else list(reference)
    pairs = list(zip([one.prompt for one in prompts], [one.text for one in given], strict=True))
    scored = task.scored_tokens
    answer_scores = _scores(
        lambda: run.map(lambda pair, lane: _continuation(scorer, pair, scored, lane), pairs, scored)
    )
    passage_scores = _scores(lambda: run.map(lambda text, lane: scorer.passage(text, scored, lane), passages, scored))
    return Evidence(
        task=task.name,
        engine=engine,
        answers=tuple(answers),
        answer_scores=answer_scores,
        passage_scores=passage_scores,
        seconds=time.monotonic() - began,
        step=step,
    )


_NOTHING = ScoredText(tokens=(), logprobs=(), tops=())


def _continuation(scorer: Scorer, pair: tuple[str, str], scored: int, lane: int) -> ScoredText:
    prompt, answer = pair
    return scorer.continuation(prompt, answer, scored, lane) if answer else _NOTHING


def _scores(ask: Callable[[], list[ScoredText]]) -> tuple[ScoredText, ...] | Missing:
    try:
        return tuple(ask())
    except NoScores as error:
        return Missing(missing=str(error))


class _Lanes:
    """Runs jobs side by side, each on a lane that no other job uses meanwhile."""

    def __init__(self, lanes: int, total: int, on_share: OnShare | None) -> None:
        self._count, self._total, self._done, self._on_share = lanes, total, 0, on_share

    def map(self, job: Callable[[Item, int], Result], items: Sequence[Item], weight: int) -> list[Result]:
        free: SimpleQueue[int] = SimpleQueue()
        for lane in range(self._count):
            free.put(lane)

        def one(item: Item) -> Result:
            lane = free.get()
            try:
                return job(item, lane)
            finally:
                free.put(lane)

        results = []
        pool = ThreadPoolExecutor(self._count, thread_name_prefix="powerband-quality")
        try:
            for future in [pool.submit(one, item) for item in items]:
                results.append(future.result())
                self._done += weight
                if self._on_share is not None:
                    self._on_share(min(1.0, self._done / self._total))
        finally:
            # On Ctrl-C what is under way is not waited for: it ends with the engine, which is stopped next.
            pool.shutdown(wait=False, cancel_futures=True)
        return results
