"""How to get next-token probabilities and greedy answers out of a server, whatever its dialect."""

from typing import Any, Protocol

import msgspec

from powerband.load.target import Target
from powerband.probes.http import HttpError, read_page
from powerband.records.errors import EngineError
from powerband.records.quality import QualityAnswer, ScoredText

TOP = 32  # listed tokens a position; vLLM lists 20 unless started with --max-logprobs
LEAD_TOKENS = 8  # of a passage, not scored: without context there is little to predict from
ANSWER_TIMEOUT_S = 600.0


class NoScores(Exception):
    """This server gives no token probabilities of a given text; the message says what was tried."""


class Scorer(Protocol):
    """One server. ``lane`` is a number below ``lanes``: what is sent on one lane is sent one after the other."""

    lanes: int

    def passage(self, text: str, scored: int, lane: int) -> ScoredText:
        """At most ``scored`` positions of a text as it stands, after the first few; raises NoScores."""

    def continuation(self, prompt: str, answer: str, scored: int, lane: int) -> ScoredText:
        """The first positions of ``answer`` after this server's own chat template of ``prompt``; raises NoScores."""

    def answer(self, prompt: str, max_tokens: int) -> QualityAnswer:
        """The greedy answer through the chat endpoint."""


class Server:
    """Requests to one target; every answer but 200 is an EngineError that carries what the server said."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._base = target.url.rstrip("/")

    @property
    def model(self) -> str:
        return self._target.model

    def post(self, path: str, body: dict[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        return self._read(path, body, timeout_s)

    def get(self, path: str) -> Any:
        return self._read(path, None, 10.0)

    def has(self, path: str, body: dict[str, Any] | None = None) -> bool:
        """Whether the server answers there at all."""
        try:
            self._read(path, body, 30.0)
        except EngineError:
            return False
        return True

    def chat(self, prompt: str, max_tokens: int) -> QualityAnswer:
        """Greedy: temperature 0 and a fixed seed for servers that sample in spite of it."""
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "seed": 0,
        }
        if self.model:
            body["model"] = self.model
        try:
            choice = self.post("/v1/chat/completions", body)["choices"][0]
            message = choice["message"]
            text = message.get("content") or message.get("reasoning_content") or ""
            return QualityAnswer(text=text, ended=choice.get("finish_reason") == "stop")
        except (KeyError, IndexError, TypeError):
            raise EngineError(f"{self._base}/v1/chat/completions answered without a message") from None

    def _read(self, path: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
        try:
            reply = read_page(
                self._base + path,
                body=body,
                timeout_s=timeout_s,
                api_key=self._target.api_key or "",
                limit_bytes=256 << 20,
            )
            if reply.status != 200:
                raise EngineError(f"{self._base}{path} answered HTTP {reply.status}: {reply.text[:200].strip()}")
            return msgspec.json.decode(reply.body)
        except HttpError as error:
            raise EngineError(error.message, hint="the engine's log may say why") from None
        except msgspec.DecodeError as error:
            raise EngineError(f"{self._base}{path} is not JSON: {error}") from None
