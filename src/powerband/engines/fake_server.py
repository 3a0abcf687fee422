"""An LLM server with known token times: a real HTTP server over a real socket, and no model.

``python -m powerband.engines.fake_server --port 0`` prints ``listening on http://127.0.0.1:PORT``. It speaks OpenAI
completions and chat completions (streamed or whole), /health, /v1/models, and the settings and metrics pages of the
engine that ``--dialect`` names; /tokenize and /detokenize where that engine has them. A prompt is a list of token ids,
or text in which every word between spaces is one token.
"""

import asyncio
import json
import os
import select
import selectors
import signal
import socket
import struct
import sys
from collections import deque
from typing import Any

import httptools
import msgspec

from powerband.engines.fake_answer import Answer
from powerband.engines.fake_logits import completion
from powerband.engines.fake_options import Options, parse_options
from powerband.engines.fake_pages import find_action, find_page
from powerband.engines.fake_schedule import Counters, make_scheduler
from powerband.engines.http_server import CONTINUE, MAX_BODY_BYTES, Refusal, error_body, response
from powerband.records.errors import PowerbandError

_TOKENIZING = ("llamacpp", "vllm", "sglang", "tgi")


class _Body(msgspec.Struct):
    """The fields of a request that matter here; real servers ignore those they do not know, and so does this one."""

    prompt: str | list[int | str] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    ignore_eos: bool = False
    content: str | None = None
    tokens: list[int] | None = None
    n: int = 1
    n_probs: int = 0
    logit_bias: list[tuple[int, float]] | dict[str, float] | None = None


_decode = msgspec.json.Decoder(_Body).decode


def to_ids(text: str, vocab: int) -> list[int]:
    """One token a word; ``t123`` is id 123, any other word a stable id below ``vocab``."""
    return [
        int(word[1:]) if word[0] == "t" and word[1:].isdecimal() else sum(word.encode()) % vocab
        for word in text.split()
    ]


class FakeServer:
    """The state that all connections share."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self.options, self.loop, self.counters = options, loop, Counters()
        self.scheduler = make_scheduler(options, loop, self.counters)
        self.ready_s = loop.time() + options.startup_delay
        self.requests = 0
        self._times = open(options.log_times, "a") if options.log_times else None  # noqa: SIM115, PTH123 - open till exit

    def count_request(self) -> int:
        self.requests += 1
        if self.options.die_after and self.requests >= self.options.die_after:
            sys.stderr.write("error: planted death\n")
            sys.stderr.flush()
            os._exit(1)
        return self.requests - 1

    def over(self, answer: Answer) -> None:
        """Write down the times of an answer that has ended (seconds of the monotonic clock)."""
        if self._times is not None:
            line = {"index": answer.index, "read_s": answer.read_s, "due_s": answer.times_s}
            self._times.write(json.dumps(line | {"sent": answer.sent}) + "\n")
            self._times.flush()

    def reply(self, method: str, path: str) -> bytes:
        """The answer to everything that is no completion."""
        options = self.options
        if method != "GET":
            done = find_action(options, path) if method == "POST" else None
            if done is not None:
                return done
            known = path == "/health" or find_page(options, self.counters, path) is not None
            raise Refusal(405 if known else 404, f"no {method} {path} here")
        if path == "/health":
            loading = self.loop.time() < self.ready_s
            return response(503, error_body(503, "Loading model")) if loading else response(200, b'{"status":"ok"}')
        page = find_page(options, self.counters, path)
        if page is not None:
            return page
        raise Refusal(404, f"no {path} here")


class Connection(asyncio.Protocol):
    """One client connection; requests that come before the last is answered wait their turn."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._queued: deque[tuple[str, str, bytes, bool, str]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None:
            self._answer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "no upgrade here")
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP: {error}")

    # httptools calls these
    def on_message_begin(self) -> None:
        self._url, self._size, self._bearer = b"", 0, ""
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key == b"authorization":
            self._bearer = value.decode("latin-1").removeprefix("Bearer ").strip()
        elif key == b"expect":
            self.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_BODY_BYTES:
            self._refuse(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        method, path = self._parser.get_method().decode(), self._url.split(b"?", 1)[0].decode("latin-1")
        request = (method, path, b"".join(self._body), self._parser.should_keep_alive(), self._bearer)
        self._queued.append(request)
        if self._answer is None and len(self._queued) == 1:
            self._next()

    # Sink: an answer writes through these
    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def reset(self) -> None:
        self._answer = None
        if self._transport is not None:
            # Without a lingering close the client would see an ordinary end of the stream.
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self._transport.abort()

    def finished(self) -> None:
        self._answer = None
        keep_alive = self._queued.popleft()[3]
        if not keep_alive and self._transport is not None:
            self._transport.close()
        elif self._queued:
            self._next()

    def _next(self) -> None:
        method, path, body, _, bearer = self._queued[0]
        options = self._server.options
        if options.stall:
            return
        try:
            if options.api_key and bearer != options.api_key and path != "/health":
                raise Refusal(401, "Invalid API Key")
            if method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
                self._complete(body, chat=path.endswith("chat/completions"))
                return
            if method == "POST" and path in ("/tokenize", "/detokenize") and options.dialect in _TOKENIZING:
                self.write(_tokenize(_read(body), path, options.vocab))
            elif method == "POST" and path == "/apply-template" and options.dialect == "llamacpp":
                self.write(_apply_template(_read(body)))
            elif method == "POST" and path == "/completion" and options.dialect == "llamacpp":
                self.write(_score(_read(body), options))
            else:
                self.write(self._server.reply(method, path))
        except Refusal as refusal:
            self.write(response(refusal.status, error_body(refusal.status, str(refusal))))
        self.finished()

    def _complete(self, raw: bytes, *, chat: bool) -> None:
        server, options = self._server, self._server.options
        read_s = server.loop.time()
        body = _read(raw)
        index = server.count_request()
        if read_s < server.ready_s:
            raise Refusal(503, "Loading model")
        if options.error_rate and options.error_hits(index):
            raise Refusal(503, "planted error")
        prompt_tokens = _count_prompt(body, chat, options.vocab)
        asked = body.max_completion_tokens or body.max_tokens
        if asked is None:
            asked = 16  # OpenAI's own default for completions
        limit = min(options.context or sys.maxsize, (options.mode == "batched" and options.kv_tokens) or sys.maxsize)
        if asked < 1 or body.n != 1 or prompt_tokens < 1 or prompt_tokens + asked > limit:
            wanted = f"prompt {prompt_tokens} tokens, answer {asked} tokens, n={body.n}"
            raise Refusal(400, f"cannot serve {wanted}: the context holds {limit}, each must be 1 or more, n must be 1")
        options_usage = bool((body.stream_options or {}).get("include_usage"))
        self._answer = Answer(
            options, self, index=index, prompt_tokens=prompt_tokens, asked=asked, stream=body.stream, chat=chat,
            include_usage=options_usage, ignore_eos=body.ignore_eos, read_s=read_s, on_over=server.over,
        )  # fmt: skip
        self._answer.as_text = chat or isinstance(body.prompt, str)
        server.scheduler.submit(self._answer)

    def _refuse(self, status: int, message: str) -> None:
        self.write(response(status, error_body(status, message)))
        if self._transport is not None:
            self._transport.close()


def _read(raw: bytes) -> _Body:
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"cannot read the body: {error}") from None


def _count_prompt(body: _Body, chat: bool, vocab: int) -> int:
    if chat:
        if not body.messages:
            raise Refusal(400, "'messages' is missing")
        return sum(len(str(message.get("content", "")).split()) for message in body.messages)
    prompt = body.prompt
    if prompt is None:
        raise Refusal(400, "'prompt' is missing")
    if isinstance(prompt, str):
        return len(prompt.split())
    if len(prompt) == 1 and isinstance(prompt[0], str):
        return len(prompt[0].split())
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) < len(prompt):
        raise Refusal(400, "several prompts in one request are not served here")
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        raise Refusal(400, f"a token id is outside 0..{vocab - 1}")
    return len(ids)


def _tokenize(body: _Body, path: str, vocab: int) -> bytes:
    if path == "/detokenize":
        words = " ".join(f"t{token}" for token in body.tokens or [])
        return response(200, json.dumps({"content": words}).encode())
    return response(200, json.dumps({"tokens": to_ids(body.content or "", vocab)}).encode())


def _apply_template(body: _Body) -> bytes:
    said = " ".join(f"{message.get('role')} {message.get('content', '')}" for message in body.messages or [])
    return response(200, json.dumps({"prompt": f"{said} assistant "}).encode())


def _score(body: _Body, options: Options) -> bytes:
    """One forced token with its probabilities, which is what the quality gate asks; nothing is generated here."""
    forced = body.logit_bias[0][0] if isinstance(body.logit_bias, list) and body.logit_bias else None
    before = [token for token in body.prompt or [] if isinstance(token, int)]
    if forced is None or not before or body.n_probs < 1:
        raise Refusal(400, "/completion here wants token ids, n_probs and one token in logit_bias")
    page = completion(before, forced, options.bits, options.vocab, body.n_probs)
    return response(200, json.dumps(page).encode())


class PreciseSelector(selectors.EpollSelector):
    """Waits to the microsecond: epoll itself rounds a timeout up to the next millisecond."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


async def _serve(options: Options) -> None:
    loop = asyncio.get_running_loop()
    server = FakeServer(options, loop)
    listener = await loop.create_server(lambda: Connection(server), options.host, options.port, backlog=4096)
    port = listener.sockets[0].getsockname()[1]
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    sys.stdout.write(f"listening on http://{options.host}:{port}\n")
    sys.stdout.flush()
    await over.wait()
    listener.close()


def main(argv: list[str]) -> int:
    try:
        options = parse_options(argv)
    except PowerbandError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return error.exit_code
    if options.fail_start:
        sys.stderr.write(f"loading model {options.model}\nerror: planted failure at start: out of memory\n")
        return 1
    loop = asyncio.SelectorEventLoop(PreciseSelector())
    try:
        loop.run_until_complete(_serve(options))
    except OSError as error:
        sys.stderr.write(f"error: cannot listen on {options.host}:{options.port}: {error}\n")
        return 3
    finally:
        loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
