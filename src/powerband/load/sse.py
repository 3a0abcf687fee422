"""Server-sent events, and what a streamed answer's events say of tokens, for each endpoint."""

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

DETAIL_CHARS = 200  # of an error's message
Decode = Callable[[Sequence[bytes]], "list[Event]"]


class Event(msgspec.Struct):
    """One event: how much text it carried, how many tokens it says it held (None: it does not say), and how it ends.

    ``text_chars`` is None where the event carries no place for text (usage only, role only).
    """

    text_chars: int | None = None
    tokens: int | None = None
    total_tokens: int | None = None  # output tokens so far, by the server's running count
    prompt_tokens: int | None = None
    finish: str | None = None
    error: str | None = None


class SseReader:
    """Cuts bytes into the data of events; any cut of the bytes gives the same events.

    An event's time is that of the piece that completed it.
    """

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, pieces: Sequence[bytes], times: Sequence[int]) -> tuple[list[bytes], list[int]]:
        """The events that ``pieces`` complete, each with its time; many pieces at once cost little more than one."""
        buffer = b"".join((self._tail, *pieces))
        if b"\r" in buffer:
            return self._feed_slowly(pieces, times)
        blocks = buffer.split(b"\n\n")
        tail = blocks.pop()
        if tail or len(blocks) != len(pieces) or self._tail or not all(p.endswith(b"\n\n") for p in pieces):
            times = _times_of(blocks, len(self._tail), pieces, times)
        self._tail = tail
        return _payloads(blocks, times)

    def _feed_slowly(self, pieces: Sequence[bytes], times: Sequence[int]) -> tuple[list[bytes], list[int]]:
        """Line ends may be \\r\\n or \\r, cut anywhere: a \\r at the end waits for what follows."""
        blocks: list[bytes] = []
        stamps: list[int] = []
        for piece, t_ns in zip(pieces, times, strict=True):
            buffer = self._tail + piece
            held = b"\r" if buffer.endswith(b"\r") else b""
            buffer = buffer[: len(buffer) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            found = buffer.split(b"\n\n")
            self._tail = found.pop() + held
            blocks += found
            stamps += [t_ns] * len(found)
        return _payloads(blocks, stamps)

    def rest(self) -> list[bytes]:
        """A last event that no blank line closed: some servers end the stream so."""
        payload = _payload(self._tail.replace(b"\r", b"\n"))
        self._tail = b""
        return [] if payload is None else [payload]


def _times_of(blocks: list[bytes], before: int, pieces: Sequence[bytes], times: Sequence[int]) -> list[int]:
    """When each block was complete: the piece with the last byte of its blank line; ``before`` bytes are older."""
    stamps = []
    piece, reach, end = 0, before + (len(pieces[0]) if pieces else 0), 0
    for block in blocks:
        end += len(block) + 2
        while reach < end:
            piece += 1
            reach += len(pieces[piece])
        stamps.append(times[piece])
    return stamps


def _payloads(blocks: list[bytes], times: Sequence[int]) -> tuple[list[bytes], list[int]]:
    payloads, stamps = [], []
    for block, t_ns in zip(blocks, times, strict=True):
        payload = block[6:] if block.startswith(b"data: {") and b"\n" not in block else _payload(block)
        if payload:
            payloads.append(payload)
            stamps.append(t_ns)
    return payloads, stamps


def _payload(block: bytes) -> bytes | None:
    if block.startswith(b"data:") and b"\n" not in block:
        return block[5:].lstrip()
    lines = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[5:].lstrip())
        elif line.startswith(b"error:"):  # llama.cpp's older servers
            lines.append(b'{"error":' + line[6:].strip() + b"}")
    return b"\n".join(lines) if lines else None


_NOTHING = msgspec.Raw()  # a field that is not there
_EMPTY = (b"", b"null", b"[]")


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None  # vLLM, SGLang, llama.cpp, DeepSeek
    reasoning: str | None = None  # OpenRouter, newer vLLM
    tool_calls: msgspec.Raw = _NOTHING


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None  # of an answer that was not streamed
    finish_reason: str | None = None
    token_ids: list[int] | None = None  # vLLM with return_token_ids


class _OpenAi(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = _NOTHING


def error_text(body: bytes) -> str:
    """The message of an error, where it is JSON of one of the usual shapes, else its first characters."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = msgspec.json.decode(body)
        for key in ("error", "message", "detail"):
            if isinstance(found, dict) and key in found:
                found = found[key]
        if isinstance(found, str):
            body = found.encode("utf-8", "replace")
    return " ".join(body[: 2 * DETAIL_CHARS].decode("utf-8", "replace").split())[:DETAIL_CHARS]


_Chunk = TypeVar("_Chunk")


def _together(payloads: Sequence[bytes], decoder: "msgspec.json.Decoder[list[_Chunk]]") -> list[_Chunk]:
    """All events in one call of the decoder: a fifth of the cost of one call each."""
    chunks = decoder.decode(b"[" + b",".join(payloads) + b"]")
    if len(chunks) != len(payloads):
        raise msgspec.DecodeError("an event holds several JSON documents")
    return chunks


_openai = msgspec.json.Decoder(list[_OpenAi])


def decode_openai(payloads: Sequence[bytes]) -> list[Event]:
    """Events of /v1/completions or /v1/chat/completions; raises msgspec.DecodeError on anything else."""
    return [_openai_event(chunk) for chunk in _together(payloads, _openai)]


def _openai_event(chunk: _OpenAi) -> Event:
    if bytes(chunk.error) not in _EMPTY:
        return Event(error=error_text(bytes(chunk.error)))
    event = Event()
    if chunk.usage is not None:
        event.total_tokens = chunk.usage.completion_tokens
        event.prompt_tokens = chunk.usage.prompt_tokens
    for choice in chunk.choices or ():
        chars = _chars(choice)
        if chars is not None:
            event.text_chars = (event.text_chars or 0) + chars
        if choice.token_ids is not None:
            event.tokens = (event.tokens or 0) + len(choice.token_ids)
        event.finish = choice.finish_reason or event.finish
    return event


def _chars(choice: _Choice) -> int | None:
    if choice.text is not None:
        return len(choice.text)
    delta = choice.delta or choice.message
    if delta is None:
        return None
    chars = len(delta.content or "") + len(delta.reasoning_content or "") + len(delta.reasoning or "")
    if bytes(delta.tool_calls) not in _EMPTY:
        chars += len(bytes(delta.tool_calls))
    if chars == 0 and delta.role is not None and choice.delta is not None:
        return None  # the opening chunk names the role and holds no token
    return chars


class _TgiToken(msgspec.Struct):
    text: str = ""


class _TgiDetails(msgspec.Struct):
    finish_reason: str | None = None
    generated_tokens: int | None = None


class _Tgi(msgspec.Struct):
    token: _TgiToken | None = None
    generated_text: str | None = None
    details: _TgiDetails | None = None
    error: str | None = None


_tgi = msgspec.json.Decoder(list[_Tgi])


def decode_tgi(payloads: Sequence[bytes]) -> list[Event]:
    """Events of TGI's /generate_stream: one token each, the last with the whole text."""
    return [_tgi_event(chunk) for chunk in _together(payloads, _tgi)]


def _tgi_event(chunk: _Tgi) -> Event:
    if chunk.error is not None:
        return Event(error=chunk.error[:DETAIL_CHARS])
    event = Event()
    if chunk.token is not None:
        event.text_chars, event.tokens = len(chunk.token.text), 1
    if chunk.generated_text is not None:
        event.finish = (chunk.details and chunk.details.finish_reason) or "stop"
    if chunk.details is not None:
        event.total_tokens = chunk.details.generated_tokens
    return event


class _LlamaCpp(msgspec.Struct):
    content: str | None = None
    tokens: list[int] | None = None
    stop: bool = False
    stop_type: str | None = None
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    error: msgspec.Raw = _NOTHING


_llamacpp = msgspec.json.Decoder(list[_LlamaCpp])


def decode_llamacpp(payloads: Sequence[bytes]) -> list[Event]:
    """Events of llama.cpp's own /completion."""
    return [_llamacpp_event(chunk) for chunk in _together(payloads, _llamacpp)]


def _llamacpp_event(chunk: _LlamaCpp) -> Event:
    if bytes(chunk.error) not in _EMPTY:
        return Event(error=error_text(bytes(chunk.error)))
    event = Event(total_tokens=chunk.tokens_predicted if chunk.stop else None, prompt_tokens=chunk.tokens_evaluated)
    if chunk.stop:
        event.finish = chunk.stop_type or "stop"
    elif chunk.content is not None:
        event.text_chars = len(chunk.content)
    return event


DECODERS: dict[str, Decode] = {
    "completions": decode_openai,
    "chat": decode_openai,
    "tgi": decode_tgi,
    "llamacpp": decode_llamacpp,
}
