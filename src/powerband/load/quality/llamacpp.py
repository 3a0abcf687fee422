"""llama.cpp's server: token by token, since it tells probabilities only of tokens that it generates.

The text's next token is forced by a bias that no other token can beat; what the server then reports are the model's own
probabilities, before any bias or sampler. The prompt of the next request is longer by that one token and everything
before it lies in the slot's cache, so a position costs one decode step, on the path that serves answers.
"""

from typing import Any

from powerband.load.quality.scorer import LEAD_TOKENS, TOP, NoScores, Server
from powerband.records.quality import QualityAnswer, ScoredText

_FORCE = 1e4


class LlamaCppScorer:
    """Implements Scorer; a lane is a slot of the server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.lanes = int(server.get("/props")["total_slots"])

    def passage(self, text: str, scored: int, lane: int) -> ScoredText:
        tokens = self._tokenise(text, special=False)
        return self._score(tokens, min(LEAD_TOKENS, len(tokens) - 1), scored, lane)

    def continuation(self, prompt: str, answer: str, scored: int, lane: int) -> ScoredText:
        messages = [{"role": "user", "content": prompt}]
        rendered = self._server.post("/apply-template", {"messages": messages})["prompt"]
        before = self._tokenise(rendered, special=True)
        return self._score([*before, *self._tokenise(answer, start=False, special=False)], len(before), scored, lane)

    def answer(self, prompt: str, max_tokens: int) -> QualityAnswer:
        return self._server.chat(prompt, max_tokens)

    def _tokenise(self, text: str, *, special: bool, start: bool = True) -> list[int]:
        body = {"content": text, "add_special": start, "parse_special": special}
        return [int(token) for token in self._server.post("/tokenize", body)["tokens"]]

    def _score(self, tokens: list[int], start: int, scored: int, lane: int) -> ScoredText:
        wanted = tokens[start : start + scored] if start > 0 else tokens[1 : 1 + scored]
        start = max(start, 1)
        rows = [self._position(tokens[: start + k], token, lane) for k, token in enumerate(wanted)]
        return ScoredText(
            tokens=tuple(str(token) for token in wanted),
            logprobs=tuple(row[0] for row in rows),
            tops=tuple(row[1] for row in rows),
        )

    def _position(self, before: list[int], token: int, lane: int) -> tuple[float | None, dict[str, float]]:
        body: dict[str, Any] = {
            "prompt": before,
            "n_predict": 1,
            "n_probs": TOP,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "logit_bias": [[token, _FORCE]],
            "cache_prompt": True,
            "id_slot": lane,
        }
        reply = self._server.post("/completion", body)
        listed = reply.get("completion_probabilities")
        if listed is None:
            raise NoScores("the server's /completion gives no completion_probabilities")
        # A token that is part of a character is held back by the server, and its probabilities with it.
        if not listed or "top_logprobs" not in listed[0]:
            return None, {}
        row = listed[0]
        top = {str(entry["id"]): float(entry["logprob"]) for entry in row["top_logprobs"]}
        return (float(row["logprob"]) if row.get("id") == token else top.get(str(token))), top
