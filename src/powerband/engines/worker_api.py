"""OpenAI's completions and chat over a backend, with /health, /v1/models, /props, /metrics, /tokenize, /detokenize."""

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from powerband.engines.http_server import STREAM_END, STREAM_HEAD, Call, Refusal, error_body, event, response
from powerband.engines.worker_job import Backend, Counters, Job, Scoring

_PROBE_WORDS = 400  # of the text with which the tokenizer's own speed is measured
_encode = msgspec.json.encode


class _Body(msgspec.Struct):
    """The fields that matter here; fields that are not known are ignored, as real servers do."""

    prompt: str | list[int | str] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    ignore_eos: bool = False
    temperature: float = 0.0
    n: int = 1
    content: str | None = None
    tokens: list[int] | None = None
    prompt_logprobs: int | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


class Api:
    """Serves calls; ``tokenizer_threads`` 0 leaves text to the backend's own thread, which tokenises in line."""

    def __init__(self, backend: Backend, model: str, tokenizer_threads: int = 0) -> None:
        self._backend, self._model, self._began_s = backend, model, time.time()
        self._pool = ThreadPoolExecutor(tokenizer_threads) if tokenizer_threads else None
        self._scorer = ThreadPoolExecutor(1)  # one text at a time: a forward pass takes all cores anyway
        self._numbers = itertools.count()
        self._tokenize_s_per_token = _tokenizer_speed(backend.encode)
        self._get: dict[str, Callable[[], bytes]] = {
            "/health": lambda: response(200, b'{"status":"ok"}'),
            "/v1/models": self._models,
            "/props": self._props,
            "/metrics": self._metrics,
        }
        self._post: dict[str, Callable[[Call], None]] = {
            "/v1/completions": lambda call: self._complete(call, chat=False),
            "/v1/chat/completions": lambda call: self._complete(call, chat=True),
            "/tokenize": self._tokenize,
            "/detokenize": self._tokenize,
        }

    def serve(self, call: Call) -> None:
        """Answer one call, or hand it to the backend; called on the loop."""
        try:
            if call.method == "GET" and call.path in self._get:
                call.write(self._get[call.path](), last=True)
            elif call.method == "POST" and call.path in self._post:
                self._post[call.path](call)
            else:
                known = call.path in self._get or call.path in self._post
                raise Refusal(405 if known else 404, f"no {call.method} {call.path} here")
        except Refusal as refusal:
            call.write(response(refusal.status, error_body(refusal.status, str(refusal))), last=True)

    def close(self) -> None:
        self._scorer.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._backend.close()

    def _complete(self, call: Call, *, chat: bool) -> None:
        body, backend = _read(call.body), self._backend
        prompt = self._prompt(body, chat)
        if body.prompt_logprobs is not None:
            self._score(call, prompt, body.prompt_logprobs)
            return
        asked = body.max_completion_tokens or body.max_tokens or 16  # 16: OpenAI's own default for completions
        if asked < 1 or body.n != 1 or not prompt:
            raise Refusal(400, f"cannot serve a prompt of {len(prompt)} with max_tokens={asked}, n={body.n}")
        if body.temperature > 0:
            raise Refusal(400, "only greedy decoding is served: leave temperature out, or set it to 0")
        usage = bool((body.stream_options or {}).get("include_usage"))
        answer = _Answer(call, self._model, next(self._numbers), chat=chat, stream=body.stream, usage=usage)
        job = Job(
            prompt,
            max_tokens=asked,
            stop_ids=frozenset() if body.ignore_eos else backend.stop_ids,
            answer=answer,
            counters=backend.counters,
            decode=backend.decode,
        )
        answer.job = job
        call.on_gone = lambda: setattr(job, "cancelled", True)
        job.wait()
        if job.text is not None and self._pool is not None:
            self._pool.submit(self._tokenize_ahead, job)
        else:
            self._submit(job)

    def _tokenize_ahead(self, job: Job) -> None:
        job.tokenize(self._backend.encode)
        self._submit(job)

    def _submit(self, job: Job) -> None:
        room = self._backend.context_tokens
        if job.text is None and len(job.ids) + job.max_tokens > room:
            job.fail(f"{len(job.ids)} prompt and {job.max_tokens} answer tokens: the context holds {room}")
            return
        self._backend.submit(job)

    def _score(self, call: Call, prompt: str | list[int], top: int) -> None:
        """How probable the model finds each token of the prompt, as vLLM tells it; nothing is generated."""
        if not isinstance(self._backend, Scoring):
            raise Refusal(400, f"{self._backend.name} gives no prompt_logprobs here")
        ids = self._backend.encode(prompt) if isinstance(prompt, str) else prompt
        if len(ids) > self._backend.context_tokens:
            raise Refusal(400, f"{len(ids)} prompt tokens: the context holds {self._backend.context_tokens}")
        self._scorer.submit(self._answer_score, call, self._backend, ids, top)

    def _answer_score(self, call: Call, backend: Scoring, ids: list[int], top: int) -> None:
        try:
            rows = backend.prompt_logprobs(ids, top)
        except Exception as error:  # noqa: BLE001 - whatever the backend's library raises must reach the client
            call.write(response(500, error_body(500, f"{type(error).__name__}: {error}")), last=True)
            return
        choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": rows}
        call.write(response(200, _encode({"model": self._model, "choices": [choice]})), last=True)

    def _prompt(self, body: _Body, chat: bool) -> str | list[int]:
        if chat:
            if not body.messages:
                raise Refusal(400, "'messages' is missing")
            parts = [{"role": str(m.get("role", "user")), "content": str(m.get("content", ""))} for m in body.messages]
            return self._backend.chat(parts)
        prompt = body.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if prompt is None or isinstance(prompt, str):
            return prompt or ""
        ids = [token for token in prompt if isinstance(token, int)]
        if len(ids) < len(prompt):
            raise Refusal(400, "several prompts in one request are not served here")
        if ids and not 0 <= min(ids) <= max(ids) < self._backend.vocab:
            raise Refusal(400, f"a token id is outside 0..{self._backend.vocab - 1}")
        return ids

    def _tokenize(self, call: Call) -> None:
        body = _read(call.body)
        text = body.content if body.content is not None else body.prompt
        if body.messages:
            text = self._prompt(body, chat=True)  # type: ignore[assignment] # a chat prompt is text
        if call.path == "/detokenize":
            page = {"content": self._backend.decode(body.tokens or [])}
        else:
            page = {"tokens": self._backend.encode(text if isinstance(text, str) else "")}  # type: ignore[dict-item]
        call.write(response(200, _encode(page)), last=True)

    def _models(self) -> bytes:
        entry = {"id": self._model, "object": "model", "created": int(self._began_s), "owned_by": "powerband"}
        return response(200, _encode({"object": "list", "data": [entry]}))

    def _props(self) -> bytes:
        backend = self._backend
        page = {
            "engine": backend.name,
            "version": backend.version,
            "context_tokens": backend.context_tokens,
            "settings": {**backend.settings(), "tokenize_s_per_token": self._tokenize_s_per_token},
        }
        return response(200, _encode(page))

    def _metrics(self) -> bytes:
        return response(200, metrics_text(self._backend.counters).encode(), "text/plain; version=0.0.4; charset=utf-8")


class _Answer:
    """Writes one job's tokens to its call: as they come, or at the end."""

    def __init__(self, call: Call, model: str, number: int, *, chat: bool, stream: bool, usage: bool) -> None:
        self._call, self._chat, self._stream, self._usage = call, chat, stream, usage
        kind = "text_completion" if not chat else "chat.completion" + (".chunk" if stream else "")
        self._head = {"id": f"cmpl-{number}", "object": kind, "created": int(time.time()), "model": model}
        self._texts: list[str] = []
        self._begun = False
        self.job: Job | None = None

    def tokens(self, ids: list[int], text: str) -> None:
        if self._stream:
            self._write(self._chunk(text, None, ids))
        else:
            self._texts.append(text)

    def end(self, reason: str) -> None:
        if not self._stream:
            text = "".join(self._texts)
            body = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
            choice = {"index": 0, "finish_reason": reason, **body}
            page = {**self._head, "choices": [choice], "usage": self._counts()}
            self._call.write(response(200, _encode(page)), last=True)
            return
        data = event(_encode(self._chunk("", reason, [])))
        if self._usage:
            data += event(_encode({**self._head, "choices": [], "usage": self._counts()}))
        self._call.write((b"" if self._begun else STREAM_HEAD) + data + STREAM_END, last=True)

    def fail(self, message: str) -> None:
        if self._begun:
            self._call.write(event(error_body(500, message)) + STREAM_END, last=True)
        else:
            self._call.write(response(500, error_body(500, message)), last=True)

    def _chunk(self, text: str, reason: str | None, ids: list[int]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "token_ids": ids}
        choice |= {"delta": {"content": text} if text or ids else {}} if self._chat else {"text": text}
        return {**self._head, "choices": [choice]}

    def _write(self, chunk: dict[str, Any]) -> None:
        data = event(_encode(chunk))
        self._call.write(data if self._begun else STREAM_HEAD + data)
        self._begun = True

    def _counts(self) -> dict[str, int]:
        prompt, given = (len(self.job.ids), self.job.given) if self.job else (0, 0)
        return {"prompt_tokens": prompt, "completion_tokens": given, "total_tokens": prompt + given}


def _read(raw: bytes) -> _Body:
    try:
        return _decode_body(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"cannot read the body: {error}") from None


def _tokenizer_speed(encode: Callable[[str], list[int]]) -> float:
    """Seconds a token costs to make from plain words: the best of three, after one for the first use."""
    text = " ".join(f"plain{n % 97} words" for n in range(_PROBE_WORDS // 2))
    times, count = [], 1
    for _ in range(4):
        began = time.perf_counter()
        count = max(len(encode(text)), 1)
        times.append(time.perf_counter() - began)
    return min(times[1:]) / count


def metrics_text(counters: Counters) -> str:
    """Prometheus text in plain names; what the backend does not know is left out."""
    with counters.lock:
        rows: list[tuple[str, str, float | None]] = [
            ("requests_running", "gauge", counters.running),
            ("requests_waiting", "gauge", counters.waiting),
            ("kv_used_ratio", "gauge", counters.kv_used_ratio),
            ("prompt_tokens_total", "counter", counters.prompt_tokens),
            ("output_tokens_total", "counter", counters.output_tokens),
            ("prefill_seconds_total", "counter", counters.prefill_s if counters.has_phases else None),
            ("decode_seconds_total", "counter", counters.decode_s if counters.has_phases else None),
            ("tokenize_seconds_total", "counter", counters.tokenize_s),
            ("detokenize_seconds_total", "counter", counters.detokenize_s),
            ("steps_total", "counter", counters.steps),
            ("requests_finished_total", "counter", counters.finished),
        ]
    lines = [
        f"# TYPE powerband_{name} {kind}\npowerband_{name} {float(value)}\n"
        for name, kind, value in rows
        if value is not None
    ]
    return "".join(lines)
