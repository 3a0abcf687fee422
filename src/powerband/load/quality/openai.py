"""Servers that score a whole prompt at once: vLLM's ``prompt_logprobs``, or OpenAI's ``echo`` with ``logprobs``."""

from typing import Any

from powerband.load.quality.scorer import LEAD_TOKENS, NoScores, Server
from powerband.records.errors import EngineError
from powerband.records.quality import QualityAnswer, ScoredText

_LANES = 8
_VLLM_TOP = 20  # its default --max-logprobs
_ECHO_TOP = 5  # what OpenAI's own API lists at most


class VllmScorer:
    """Implements Scorer over /tokenize (which applies the chat template too) and ``prompt_logprobs``."""

    lanes = _LANES

    def __init__(self, server: Server) -> None:
        self._server = server

    def passage(self, text: str, scored: int, lane: int) -> ScoredText:
        tokens = self._tokenise({"prompt": text})
        return self._score(tokens, max(1, min(LEAD_TOKENS, len(tokens) - 1)), scored)

    def continuation(self, prompt: str, answer: str, scored: int, lane: int) -> ScoredText:
        messages = [{"role": "user", "content": prompt}]
        before = self._tokenise({"messages": messages, "add_generation_prompt": True})
        if not before:
            raise NoScores("the server's /tokenize does not apply its chat template")
        after = self._tokenise({"prompt": answer, "add_special_tokens": False})
        return self._score([*before, *after], len(before), scored)

    def answer(self, prompt: str, max_tokens: int) -> QualityAnswer:
        return self._server.chat(prompt, max_tokens)

    def _tokenise(self, body: dict[str, Any]) -> list[int]:
        return [int(token) for token in self._server.post("/tokenize", {"model": self._server.model, **body})["tokens"]]

    def _score(self, tokens: list[int], start: int, scored: int) -> ScoredText:
        sent = tokens[: start + scored]
        body = {
            "model": self._server.model,
            "prompt": sent,
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": _VLLM_TOP,
        }
        listed = self._server.post("/v1/completions", body)["choices"][0].get("prompt_logprobs")
        if listed is None or len(listed) != len(sent):
            raise NoScores("/v1/completions gives no prompt_logprobs")
        rows = [_row(str(token), listed[place]) for place, token in enumerate(sent) if place >= start]
        return ScoredText(
            tokens=tuple(str(token) for token in sent[start:]),
            logprobs=tuple(row[0] for row in rows),
            tops=tuple(row[1] for row in rows),
        )


def _row(token: str, listed: dict[str, dict[str, Any]] | None) -> tuple[float | None, dict[str, float]]:
    """vLLM lists the prompt's own token too, beyond the likeliest where it is none of them."""
    values = {key: float(entry["logprob"]) for key, entry in (listed or {}).items()}
    top = dict(sorted(values.items(), key=lambda pair: -pair[1])[:_VLLM_TOP])
    return values.get(token), top


class EchoScorer:
    """Implements Scorer for plain completions; it cannot see what the chat template adds, and says so."""

    lanes = _LANES

    def __init__(self, server: Server) -> None:
        self._server = server

    def passage(self, text: str, scored: int, lane: int) -> ScoredText:
        body: dict[str, Any] = {"prompt": text, "max_tokens": 1, "temperature": 0.0, "echo": True}
        body |= {"logprobs": _ECHO_TOP, **({"model": self._server.model} if self._server.model else {})}
        try:
            listed = self._server.post("/v1/completions", body)["choices"][0].get("logprobs")
        except EngineError as error:
            raise NoScores(f"no echo with logprobs: {error.message}") from None
        if not listed or not listed.get("top_logprobs") or len(listed["tokens"]) < 2:
            raise NoScores("/v1/completions gives no logprobs of its prompt, neither by prompt_logprobs nor by echo")
        asked = len(listed["tokens"]) - 1  # the last one is the answer's
        start = max(1, min(LEAD_TOKENS, asked - 1))
        span = slice(start, min(asked, start + scored))
        return ScoredText(
            tokens=tuple(listed["tokens"][span]),
            logprobs=tuple(listed["token_logprobs"][span]),
            tops=tuple(dict(entry or {}) for entry in listed["top_logprobs"][span]),
        )

    def continuation(self, prompt: str, answer: str, scored: int, lane: int) -> ScoredText:
        raise NoScores("the server does not tell how its chat template writes a prompt (no /tokenize of messages)")

    def answer(self, prompt: str, max_tokens: int) -> QualityAnswer:
        return self._server.chat(prompt, max_tokens)
