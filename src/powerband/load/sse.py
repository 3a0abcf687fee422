"""Server-sent events, and what a streamed answer's events say of tokens, for each endpoint."""

from collections.abc import Callable

import msgspec

Decode = Callable[[bytes], "Event"]


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
    """Cuts bytes into the data of events; any cut of the bytes gives the same events."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._tail + data if self._tail else data
        if b"\r" in buffer:
            held = b"\r" if buffer.endswith(b"\r") else b""  # its \n may come with the next bytes
            buffer = buffer[: len(buffer) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            held = b""
        blocks = buffer.split(b"\n\n")
        self._tail = blocks.pop() + held
        return [payload for block in blocks if (payload := _payload(block)) is not None]

    def rest(self) -> list[bytes]:
        """A last event that no blank line closed: some servers end the stream so."""
        payload = _payload(self._tail.replace(b"\r", b"\n"))
        self._tail = b""
        return [] if payload is None else [payload]


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


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None  # vLLM, SGLang, llama.cpp, DeepSeek
    reasoning: str | None = None  # OpenRouter, newer vLLM
    tool_calls: msgspec.Raw | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None  # vLLM with return_token_ids


class _OpenAi(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw | None = None


_openai = msgspec.json.Decoder(_OpenAi)
_NULL = msgspec.Raw(b"null")


def decode_openai(data: bytes) -> Event:
    """An event of /v1/completions or /v1/chat/completions; raises msgspec.DecodeError on anything else."""
    chunk = _openai.decode(data)
    if chunk.error is not None and bytes(chunk.error) != b"null":
        return Event(error=bytes(chunk.error)[:200].decode("utf-8", "replace"))
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
    delta = choice.delta
    if delta is None:
        return None
    chars = len(delta.content or "") + len(delta.reasoning_content or "") + len(delta.reasoning or "")
    if delta.tool_calls is not None and bytes(delta.tool_calls) not in (b"null", b"[]"):
        chars += len(bytes(delta.tool_calls))
    if chars == 0 and delta.role is not None:
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


_tgi = msgspec.json.Decoder(_Tgi)


def decode_tgi(data: bytes) -> Event:
    """An event of TGI's /generate_stream: one token each, the last with the whole text."""
    chunk = _tgi.decode(data)
    if chunk.error is not None:
        return Event(error=chunk.error[:200])
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
    error: msgspec.Raw | None = None


_llamacpp = msgspec.json.Decoder(_LlamaCpp)


def decode_llamacpp(data: bytes) -> Event:
    """An event of llama.cpp's own /completion."""
    chunk = _llamacpp.decode(data)
    if chunk.error is not None:
        return Event(error=bytes(chunk.error)[:200].decode("utf-8", "replace"))
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
