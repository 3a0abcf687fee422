"""One completion on its way through a backend: tokens in, text out, and the counters that /metrics shows."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass
class Counters:
    """What a backend did so far; request-seconds of prefill and decode, as engines count them.

    ``steps`` and ``has_phases`` say whether the backend knows its forward passes and when it takes a request up; a
    value it does not know is left off the page.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tokenize_s: float = 0.0
    detokenize_s: float = 0.0
    finished: int = 0
    waiting: int = 0
    running: int = 0
    steps: int | None = None
    kv_used_ratio: float | None = None
    has_phases: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)


class Detokenizer:
    """Text of a growing list of ids: what is new since the last call, held back while a character is incomplete."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._from, self._shown = 0, 0  # decode from here, of which ids up to there were shown

    def push(self, ids: list[int]) -> str:
        """The text that ``ids`` add. A token's text can depend on the one before it, so both are decoded together."""
        self._ids += ids
        before = self._decode(self._ids[self._from : self._shown])
        now = self._decode(self._ids[self._from :])
        if len(now) <= len(before) or now.endswith("\ufffd"):
            return ""
        self._from, self._shown = self._shown, len(self._ids)
        return now[len(before) :]


class Answer(Protocol):
    """Where the tokens of a job go; called from the backend's threads."""

    def tokens(self, ids: list[int], text: str) -> None: ...

    def end(self, reason: str) -> None: ...

    def fail(self, message: str) -> None: ...


class Job:
    """A prompt (ids, or ``text`` until it is tokenised) and the tokens it gets.

    A backend calls ``start`` when it takes the job up, ``give`` with new tokens until that says the job is over (or
    ``fail``); ``cancelled`` is set where the client went away.
    """

    def __init__(
        self,
        prompt: str | list[int],
        *,
        max_tokens: int,
        stop_ids: frozenset[int],
        answer: Answer,
        counters: Counters,
        decode: Callable[[list[int]], str],
    ) -> None:
        self.text = prompt if isinstance(prompt, str) else None
        self.ids: list[int] = [] if isinstance(prompt, str) else prompt
        self.max_tokens, self.stop_ids = max_tokens, stop_ids
        self.given = 0
        self.cancelled = self.over = False
        self._answer, self._counters = answer, counters
        self._detokenizer = Detokenizer(decode)
        self._last_s: float | None = None
        self._state = "new"

    def tokenize(self, encode: Callable[[str], list[int]]) -> None:
        """Make ids of the text, in the calling thread; nothing to do where the prompt came as ids."""
        if self.text is None:
            return
        began = time.perf_counter()
        self.ids, self.text = encode(self.text), None
        with self._counters.lock:
            self._counters.tokenize_s += time.perf_counter() - began

    def wait(self) -> None:
        """It stands in the queue."""
        self._to("waiting")

    def start(self) -> None:
        """A backend took it up."""
        self._to("running")
        self._last_s = time.perf_counter()

    def give(self, ids: list[int]) -> bool:
        """Pass new tokens on; True when the answer is over, at its length or at a stop id."""
        if self.over:
            return True
        kept, reason = self._cut(ids)
        self._count(kept)
        began = time.perf_counter()
        text = self._detokenizer.push(kept) if kept else ""
        with self._counters.lock:
            self._counters.detokenize_s += time.perf_counter() - began
        if kept:
            self._answer.tokens(kept, text)
        if reason is not None:
            self._end()
            self._answer.end(reason)
        return self.over

    def fail(self, message: str) -> None:
        if not self.over:
            self._end()
            self._answer.fail(message)

    def drop(self) -> None:
        """The client is gone: nothing more is sent."""
        if not self.over:
            self._end()

    def _cut(self, ids: list[int]) -> tuple[list[int], str | None]:
        for place, token in enumerate(ids):
            if token in self.stop_ids:
                return ids[:place], "stop"
            if self.given + place + 1 >= self.max_tokens:
                return ids[: place + 1], "length"
        return ids, None

    def _count(self, ids: list[int]) -> None:
        now, counters = time.perf_counter(), self._counters
        with counters.lock:
            if self.given == 0 and ids:
                counters.prompt_tokens += len(self.ids)
            if self._last_s is not None:
                if self.given == 0:
                    counters.prefill_s += now - self._last_s
                else:
                    counters.decode_s += now - self._last_s
            counters.output_tokens += len(ids)
        self._last_s = now
        self.given += len(ids)

    def _to(self, state: str) -> None:
        counters = self._counters
        with counters.lock:
            counters.waiting += (state == "waiting") - (self._state == "waiting")
            counters.running += (state == "running") - (self._state == "running")
            counters.finished += state == "over"
        self._state = state

    def _end(self) -> None:
        self.over = True
        self._to("over")


@runtime_checkable
class Scoring(Protocol):
    """A backend that can tell how probable its model finds a given text."""

    def prompt_logprobs(self, ids: list[int], top: int) -> list[dict[str, dict[str, float]] | None]:
        """For each token the ``top`` likeliest in its place and itself, by id; None for the first."""


class Backend(Protocol):
    """An in-process engine behind the worker's HTTP; ``submit`` returns at once, threads of its own do the work."""

    name: str
    version: str
    context_tokens: int  # the longest prompt plus answer
    stop_ids: frozenset[int]
    vocab: int
    counters: Counters

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def chat(self, messages: list[dict[str, str]]) -> str:
        """The prompt of a conversation, by the model's template."""

    def submit(self, job: Job) -> None: ...

    def settings(self) -> dict[str, bool | int | float | str]:
        """What it really runs with."""

    def close(self) -> None: ...
