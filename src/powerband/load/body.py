"""Request bytes: head and body, prepared once, so that a send is one join."""

from collections.abc import Callable
from typing import Any

import msgspec

from powerband import __version__
from powerband.load.target import PATHS, Target
from powerband.records.errors import RequestError

_MARK = "@@powerband-prompt@@"
_COUNT = 7_777_777_001  # stands for the answer's length while the template is made
Build = Callable[[bytes, int], bytes]
_TOKENS_FIELD = {"completions": "max_tokens", "chat": "max_tokens", "llamacpp": "n_predict", "tgi": "max_new_tokens"}


def request_builder(target: Target, as_ids: bool) -> Build:
    """A function of (prompt bytes, output tokens) that gives the bytes of one HTTP request."""
    body = msgspec.json.encode(_template(target))
    mark, count = b'"' + _MARK.encode() + b'"', str(_COUNT).encode()
    if body.count(mark) != 1 or body.count(count) < 1:
        raise RequestError("extra body fields overwrite the prompt or the answer's length", hint="leave those two out")
    before, _, after = body.partition(mark)
    if count in before:  # one order of the fields, so that a request is four pieces
        raise RequestError("extra body fields overwrite the answer's length", hint="leave it out: --traffic sets it")
    middle, _, end = after.partition(count)
    opening, closing = (b"[", b"]") if as_ids else (b'"', b'"')
    before, middle = before + opening, closing + middle
    head = _head(target)

    def build(prompt: bytes, output_tokens: int) -> bytes:
        tokens = b"%d" % output_tokens
        body = b"".join((before, prompt, middle, tokens, end.replace(count, tokens)))
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    return build


def _head(target: Target) -> bytes:
    host, port, tls, base = target.address()
    shown = f"[{host}]" if ":" in host else host
    lines = [
        f"POST {base}{PATHS[target.endpoint]} HTTP/1.1",
        f"Host: {shown}" if port == (443 if tls else 80) else f"Host: {shown}:{port}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"User-Agent: powerband/{__version__}",
    ]
    if target.api_key:
        if any(letter in target.api_key for letter in "\r\n"):
            raise RequestError("the API key holds a line break", hint="check the variable or file it came from")
        lines.append(f"Authorization: Bearer {target.api_key}")
    if not target.keep_alive:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n").encode()


def _template(target: Target) -> dict[str, Any]:
    """Greedy, streamed, with the server's token count at the end; ``extra_body`` wins over all else."""
    field = _TOKENS_FIELD[target.endpoint]
    if target.endpoint == "tgi":
        extra = dict(target.extra_body)
        parameters = {"do_sample": False, "details": True, **extra.pop("parameters", {}), field: _COUNT}
        return {"inputs": _MARK, **extra, "parameters": parameters}
    if target.endpoint == "llamacpp":
        return {"prompt": _MARK, "stream": True, "temperature": 0.0, **target.extra_body, field: _COUNT}
    body: dict[str, Any] = {"model": target.model} if target.model else {}
    if target.endpoint == "chat":
        body["messages"] = [{"role": "user", "content": _MARK}]
    else:
        body["prompt"] = _MARK
    options = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0.0}
    return body | options | target.extra_body | {field: _COUNT}
