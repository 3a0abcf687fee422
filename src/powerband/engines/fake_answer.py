"""One answer of the fake server: counts, faults, and the bytes a client gets."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from powerband.engines.fake_options import Options
from powerband.engines.http_server import STREAM_END, STREAM_HEAD, event, response

_encode = msgspec.json.encode


class Sink(Protocol):
    """Where an answer's bytes go."""

    def send(self, data: bytes, *, last: bool = False) -> None: ...
    def reset(self) -> None: ...


def token_text(token: int) -> str:
    """The word of a token id; words joined by spaces give the ids back when they are read again."""
    return f" t{token}"


@lru_cache(maxsize=4096)
def _frame(model: str, chat: bool, text: str, finish: str | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if chat:
        choice["delta"] = {"content": text} if text else {}
    else:
        choice |= {"text": text, "logprobs": None}
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {"choices": [choice], "created": 0, "model": model, "object": kind, "id": "cmpl-fake"}


@lru_cache(maxsize=8192)
def _token_event(model: str, chat: bool, first: int, count: int, vocab: int) -> bytes:
    """Shared by all answers: the text of token n depends on n alone, so that a stream costs no formatting."""
    text = "".join(token_text(n % vocab) for n in range(first, first + count))
    return event(_encode(_frame(model, chat, text, None)))


class Answer:
    """What one request gets; the scheduler calls ``emit`` when tokens are due and learns whether the answer is over."""

    __slots__ = (
        "as_text", "asked", "chat", "context", "fault", "first_s", "gone", "include_usage", "index", "on_over",
        "options", "prefilled", "prompt_tokens", "read_s", "sent", "sink", "started_s", "stop_at", "stream", "times_s",
    )  # fmt: skip

    def __init__(
        self, options: Options, sink: Sink, *, index: int, prompt_tokens: int, asked: int, stream: bool, chat: bool,
        include_usage: bool, ignore_eos: bool, read_s: float, on_over: Callable[["Answer"], None],
    ) -> None:  # fmt: skip
        self.options, self.sink, self.index, self.on_over = options, sink, index, on_over
        self.prompt_tokens, self.asked, self.stream, self.chat = prompt_tokens, asked, stream, chat
        self.include_usage, self.read_s = include_usage, read_s
        self.stop_at = asked if ignore_eos or not options.eos_after else min(asked, options.eos_after)
        self.started_s = read_s  # when the engine took it up
        self.first_s: float | None = None  # when its first token went out
        self.sent = 0
        self.as_text = False  # the prompt has to be tokenised
        self.prefilled = 0  # prompt tokens computed so far, kept by the batched scheduler
        self.context = prompt_tokens  # tokens to compute before the next answer token: grows after a preemption
        self.gone = False  # the client went away, or a fault ended it
        self.fault = options.fault_hits(index)
        self.times_s: list[float] = []

    def emit(self, count: int, due_s: float) -> bool:
        """Send the next ``count`` tokens, due at ``due_s``; True when the answer is over."""
        if self.gone:
            return True
        count = min(count, self.stop_at - self.sent)
        if self.fault and self._planted(self.sent + count):
            return self.gone
        if self.options.log_times:
            self.times_s.append(due_s)
        if self.stream:
            self._send_chunk(count)
        self.sent += count
        if self.sent < self.stop_at:
            return False
        if not self.stream:
            self.sink.send(response(200, _encode(self._whole())))
        self._over()
        return True

    def cancel(self) -> None:
        self.gone = True

    def _usage(self, sent: int) -> dict[str, int]:
        total = self.prompt_tokens + sent
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": sent, "total_tokens": total}

    def _over(self) -> None:
        self.on_over(self)
        self.sink.send(b"", last=True)

    def _send_chunk(self, count: int) -> None:
        data = _token_event(self.options.model, self.chat, self.sent, count, self.options.vocab)
        if self.sent == 0:
            data = STREAM_HEAD + data
        if self.sent + count >= self.stop_at:
            data += self._tail(self.sent + count)
        self.sink.send(data)

    def _tail(self, sent: int) -> bytes:
        """The finish chunk, the usage (llama.cpp puts it into the finish chunk of a completion), and [DONE]."""
        finish = dict(_frame(self.options.model, self.chat, "", self._finish_reason()))
        if not self.include_usage:
            return event(_encode(finish)) + STREAM_END
        usage = self._usage(sent)
        if self.options.dialect == "llamacpp" and not self.chat:
            return event(_encode(finish | {"usage": usage})) + STREAM_END
        return event(_encode(finish)) + event(_encode(finish | {"choices": [], "usage": usage})) + STREAM_END

    def _finish_reason(self) -> str:
        return "length" if self.stop_at == self.asked else "stop"

    def _whole(self) -> dict[str, Any]:
        text = "".join(token_text(n % self.options.vocab) for n in range(self.sent))
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._finish_reason()}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text, "logprobs": None}
        kind = "chat.completion" if self.chat else "text_completion"
        head = {"created": 0, "model": self.options.model, "object": kind, "id": "cmpl-fake"}
        return {"choices": [choice], **head, "usage": self._usage(self.sent)}

    def _planted(self, after: int) -> bool:
        """Act out a planted fault that is due before token ``after``; True when these tokens are not to be sent."""
        options = self.options
        if 0 <= options.reset_after < after:
            self.gone = True
            self.on_over(self)
            self.sink.reset()
            return True
        if 0 <= options.stall_after < after:
            self.gone = True
            self.on_over(self)  # frees the slot; the connection stays open and silent
            return True
        if 0 <= options.malformed_after < after and self.stream:
            head = STREAM_HEAD if self.sent == 0 else b""
            self.sink.send(head + event(b'{"choices":[{"text":') + STREAM_END)
            self.gone = True
            self._over()
            return True
        return False
