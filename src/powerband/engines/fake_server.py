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
import sys
from typing import Any

import msgspec

from powerband.engines.fake_answer import Answer
from powerband.engines.fake_logits import completion
from powerband.engines.fake_options import Options, parse_options
from powerband.engines.fake_pages import find_action, find_page
from powerband.engines.fake_schedule import Counters, make_scheduler
from powerband.engines.http_server import Call, Refusal, error_body, listen, response
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

    def serve(self, call: Call) -> None:
        """Answer one call, or hand it to the scheduler."""
        options = self.options
        if options.stall:
            return
        try:
            if options.api_key and call.bearer != options.api_key and call.path != "/health":
                raise Refusal(401, "Invalid API Key")
            if call.method == "POST" and call.path in ("/v1/completions", "/v1/chat/completions"):
                self._complete(call)
            else:
                call.send(self._reply(call), last=True)
        except Refusal as refusal:
            call.send(response(refusal.status, error_body(refusal.status, str(refusal))), last=True)

    def _reply(self, call: Call) -> bytes:
        """The answer to everything that is no completion."""
        options, path = self.options, call.path
        if call.method != "GET":
            posted = self._posted(call) if call.method == "POST" else None
            if posted is not None:
                return posted
            known = path == "/health" or find_page(options, self.counters, path) is not None
            raise Refusal(405 if known else 404, f"no {call.method} {path} here")
        if path == "/health":
            loading = self.loop.time() < self.ready_s
            return response(503, error_body(503, "Loading model")) if loading else response(200, b'{"status":"ok"}')
        page = find_page(options, self.counters, path)
        if page is not None:
            return page
        raise Refusal(404, f"no {path} here")

    def _posted(self, call: Call) -> bytes | None:
        options, path = self.options, call.path
        if path in ("/tokenize", "/detokenize") and options.dialect in _TOKENIZING:
            return _tokenize(_read(call.body), path, options.vocab)
        if path == "/apply-template" and options.dialect == "llamacpp":
            return _apply_template(_read(call.body))
        if path == "/completion" and options.dialect == "llamacpp":
            return _score(_read(call.body), options)
        return find_action(options, path)

    def _complete(self, call: Call) -> None:
        options, chat = self.options, call.path.endswith("chat/completions")
        read_s = self.loop.time()
        body = _read(call.body)
        index = self.count_request()
        if read_s < self.ready_s:
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
        answer = Answer(
            options, call, index=index, prompt_tokens=prompt_tokens, asked=asked, stream=body.stream, chat=chat,
            include_usage=bool((body.stream_options or {}).get("include_usage")), ignore_eos=body.ignore_eos,
            read_s=read_s, on_over=self.over,
        )  # fmt: skip
        answer.as_text = chat or isinstance(body.prompt, str)
        call.on_gone = answer.cancel
        self.scheduler.submit(answer)


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
    server = FakeServer(options, asyncio.get_running_loop())
    await listen(server.serve, options.host, options.port, sys.stdout)


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
