"""Token probabilities out of three dialects: each stand-in server knows the truth that must come back."""

import math
from typing import Any

import pytest

from powerband.load.quality.collect import collect_evidence, find_scorer
from powerband.load.quality.llamacpp import LlamaCppScorer
from powerband.load.quality.openai import EchoScorer, VllmScorer
from powerband.load.quality.scorer import NoScores
from powerband.load.target import Target
from powerband.records.errors import EngineError
from powerband.records.quality import QualityPrompt, QualityTask
from powerband.records.value import Missing
from tests.support.answering import serving
from tests.support.stub_backend import StubBackend, served

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WORDS += ["thirteen"]


def truth(before: list[int], token: int) -> float:
    """The logarithm of a probability that depends on the token before and on the place."""
    return -0.5 - ((before[-1] * 7 + token + len(before)) % 10) / 4


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def chat(body: dict[str, Any]) -> dict[str, Any]:
    assert body["temperature"] == 0
    return {"choices": [{"message": {"content": "one two three"}, "finish_reason": "stop"}]}


def vllm(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Shapes as vLLM 0.11 to 0.26 answer: the first position has none, the others a dict by token id."""
    if path == "/tokenize":
        if "messages" in body:
            return 200, {"tokens": [11, *ids(body["messages"][0]["content"]), 12]}
        start = [] if body.get("add_special_tokens") is False else [13]
        return 200, {"tokens": [*start, *ids(body["prompt"])] if body["prompt"] != "hi" else [0]}
    if path == "/v1/chat/completions":
        return 200, chat(body)
    if path == "/v1/completions":
        sent = body["prompt"]
        listed: list[Any] = [None]
        for place in range(1, len(sent)):
            row = {k: truth(sent[:place], k) for k in range(10)} | {sent[place]: truth(sent[:place], sent[place])}
            listed.append({str(k): {"logprob": v, "rank": 1, "decoded_token": WORDS[k]} for k, v in row.items()})
        return 200, {"choices": [{"text": "", "prompt_logprobs": listed}]}
    return 404, {"error": "no such page"}


def llamacpp(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    if path == "/props":
        return 200, {"total_slots": 3}
    if path == "/apply-template":
        return 200, {"prompt": "eleven " + body["messages"][0]["content"] + " twelve"}
    if path == "/tokenize":
        known = [word for word in body["content"].split() if word in WORDS]
        return 200, {"tokens": [*([13] if body["add_special"] else []), *ids(" ".join(known))]}
    if path == "/v1/chat/completions":
        return 200, chat(body)
    if path == "/completion":
        before, forced = body["prompt"], body["logit_bias"][0][0]
        assert body["n_predict"] == 1
        assert 0 <= body["id_slot"] < 3
        if forced == 9:  # held back: part of a character
            return 200, {"content": "", "completion_probabilities": []}
        top = [{"id": k, "logprob": truth(before, k)} for k in range(5)]
        row = {"id": forced, "logprob": truth(before, forced), "top_logprobs": top}
        return 200, {"content": "x", "completion_probabilities": [row]}
    return 404, {}


def echo(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    if path == "/v1/completions":
        words = body["prompt"].split()
        rows: list[float | None] = [
            None,
            *[truth(ids(" ".join(words[:k])), WORDS.index(words[k])) for k in range(1, len(words))],
        ]
        tops: list[Any] = [None, *[{words[k]: rows[k]} for k in range(1, len(words))]]
        logprobs = {"tokens": [*words, "x"], "token_logprobs": [*rows, -1.0], "top_logprobs": [*tops, {"x": -1.0}]}
        return 200, {"choices": [{"text": "", "logprobs": logprobs}]}
    if path == "/v1/chat/completions":
        return 200, chat(body)
    return 404, {}


TEXT = " ".join(WORDS[k % 9] for k in range(20))


def test_vllm_gives_the_truth_for_a_passage_and_after_its_template() -> None:
    with serving(vllm) as url:
        scorer = find_scorer(Target(url=url, model="m"))
        assert isinstance(scorer, VllmScorer)
        found = scorer.passage(TEXT, 6, 0)
        tokens = [13, *ids(TEXT)]
        assert found.tokens == tuple(str(token) for token in tokens[8:14])
        assert found.logprobs == tuple(truth(tokens[:k], tokens[k]) for k in range(8, 14))
        after = scorer.continuation("five six", "one two", 10, 0)
        whole = [11, 5, 6, 12, 1, 2]
        assert after.tokens == ("1", "2")
        assert after.logprobs == (truth(whole[:4], 1), truth(whole[:5], 2))


def test_llamacpp_gives_the_truth_token_by_token() -> None:
    with serving(llamacpp) as url:
        scorer = find_scorer(Target(url=url, model="m"))
        assert isinstance(scorer, LlamaCppScorer)
        assert scorer.lanes == 3
        found = scorer.passage(TEXT, 6, 1)
        tokens = [13, *ids(TEXT)]
        assert found.tokens == tuple(str(token) for token in tokens[8:14])
        assert found.logprobs == tuple(truth(tokens[:k], tokens[k]) for k in range(8, 14))
        assert len(found.tops[0]) == 5
        after = scorer.continuation("five six", "one nine two", 10, 0)
        whole = [13, 11, 5, 6, 12, 1, 9, 2]
        assert after.logprobs == (truth(whole[:5], 1), None, truth(whole[:7], 2))


def test_echo_gives_passages_and_says_what_it_cannot() -> None:
    with serving(echo) as url:
        scorer = find_scorer(Target(url=url, model="m"))
        assert isinstance(scorer, EchoScorer)
        found = scorer.passage(TEXT, 5, 0)
        assert found.tokens == tuple(TEXT.split()[8:13])
        assert found.logprobs[0] == truth(ids(TEXT)[:8], ids(TEXT)[8])
        with pytest.raises(NoScores, match="chat template"):
            scorer.continuation("five", "one", 5, 0)


def test_evidence_of_a_whole_task_in_order() -> None:
    prompts = tuple(QualityPrompt(prompt=word) for word in WORDS[:9])
    task = QualityTask(name="t", preset="chat", prompts=prompts, passages=(TEXT,) * 5, scored_tokens=4, max_tokens=3)
    shares: list[float] = []
    with serving(vllm) as url:
        scorer = find_scorer(Target(url=url, model="m"))
        found = collect_evidence(scorer, task, engine="e", on_share=shares.append)
        half = collect_evidence(scorer, task, engine="e", step=2, reference=found.answers[::2])
    assert len(found.answers) == 9
    assert not isinstance(found.answer_scores, Missing)
    assert [one.logprobs[0] for one in found.answer_scores] == [truth([11, k, 12], 1) for k in range(9)]
    assert not isinstance(half.answer_scores, Missing)
    assert half.answer_scores == found.answer_scores[::2]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_a_server_without_probabilities_gives_a_reason_and_answers() -> None:
    def bare(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/chat/completions":
            return 200, chat(body)
        return (200, {"choices": [{"text": "x"}]}) if path == "/v1/completions" else (404, {})

    task = QualityTask(name="t", preset="chat", prompts=(QualityPrompt(prompt="one"),), passages=(TEXT,))
    with serving(bare) as url:
        found = collect_evidence(find_scorer(Target(url=url, model="m")), task, engine="e")
    assert isinstance(found.passage_scores, Missing)
    assert "gives no logprobs" in found.passage_scores.missing
    assert isinstance(found.answer_scores, Missing)
    assert math.isclose(len(found.answers), 1)


def test_a_server_that_fails_is_an_engine_error_with_its_words() -> None:
    def broken(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return 500, {"error": "out of memory"}

    task = QualityTask(name="t", preset="chat", prompts=(QualityPrompt(prompt="one"),), passages=())
    with serving(broken) as url, pytest.raises(EngineError, match="out of memory"):
        collect_evidence(find_scorer(Target(url=url, model="m")), task, engine="e")


class ScoringStub(StubBackend):
    """Knows how probable each id is after those before it."""

    def prompt_logprobs(self, ids: list[int], top: int) -> list[dict[str, dict[str, float]] | None]:
        if 13 in ids:
            raise RuntimeError("out of memory")
        return [None, *[{str(token): {"logprob": truth(ids[:k], token)}} for k, token in enumerate(ids) if k]]


def test_the_worker_scores_a_text_and_what_follows_its_template() -> None:
    with served(ScoringStub()) as url:
        scorer = find_scorer(Target(url=url, model="stub-model"))
        assert isinstance(scorer, VllmScorer)
        found = scorer.passage(TEXT, 6, 0)
        tokens = [len(word) for word in TEXT.split()]
        assert found.logprobs == tuple(truth(tokens[:k], tokens[k]) for k in range(8, 14))
        after = scorer.continuation("a bb", "ccc dddd", 5, 0)
        whole = [len("user:"), 1, 2, 3, 4]
        assert after.tokens == ("3", "4")
        assert after.logprobs == (truth(whole[:3], 3), truth(whole[:4], 4))
        with pytest.raises(EngineError, match="out of memory"):
            scorer.passage("thirteenchars " * 12, 6, 0)


def test_a_backend_that_cannot_score_says_so() -> None:
    task = QualityTask(name="t", preset="chat", prompts=(), passages=(TEXT,))
    with served(StubBackend()) as url, pytest.raises(EngineError, match="gives no prompt_logprobs"):
        collect_evidence(find_scorer(Target(url=url, model="stub-model")), task, engine="e")
