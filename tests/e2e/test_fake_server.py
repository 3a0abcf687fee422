"""The fake server over a real socket: what it says, when, and how it fails when told to."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from powerband.probes.engine_metrics import to_sample
from powerband.probes.http import HttpError, read_json, read_page
from powerband.records.value import Missing
from tests.support.faking import fake


async def stream(url: str, body: dict[str, Any], path: str = "/v1/completions") -> list[tuple[float, str]]:
    """The data of each server-sent event with its arrival, counted from the moment the request was sent."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps({"stream": True, **body}).encode()
    writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % path.encode())
    writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
    began = time.monotonic()
    events = []
    try:
        while line := await reader.readline():
            if line.startswith(b"data: "):
                events.append((time.monotonic() - began, line[6:].decode().strip()))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return events


def documents(events: list[tuple[float, str]]) -> list[dict[str, Any]]:
    return [json.loads(text) for _, text in events if text != "[DONE]"]


def test_timed_tokens_come_when_they_are_due() -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 5, "stream_options": {"include_usage": True}}
    with fake("--mode", "timed", "--ttft-ms", "60", "--itl-ms", "30") as url:
        asyncio.run(stream(url, body))
        events = asyncio.run(stream(url, body))
    tokens = [when for when, text in events if text != "[DONE]" and json.loads(text)["choices"][0]["text"]]
    assert len(tokens) == 5
    for when, due in zip(tokens, (0.06, 0.09, 0.12, 0.15, 0.18), strict=True):
        assert due <= when + 0.001  # never early
        assert when < due + 0.05  # late only by what a busy machine adds
    assert events[-1][1] == "[DONE]"


@pytest.mark.parametrize("dialect", ["llamacpp", "vllm"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_stream_usage_text_and_finish(dialect: str, path: str) -> None:
    prompt: dict[str, Any] = {"prompt": "t5 t6 seven"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "t5 t6"}, {"role": "user", "content": "seven"}]}
    body = {**prompt, "max_tokens": 4, "stream_options": {"include_usage": True}}
    with fake("--mode", "timed", "--ttft-ms", "1", "--itl-ms", "1", "--dialect", dialect) as url:
        found = documents(asyncio.run(stream(url, body, path)))
        without = documents(asyncio.run(stream(url, {**body, "stream_options": None}, path)))
    choices = [choice for one in found for choice in one["choices"]]
    text = "".join(choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in choices)
    assert text == " t0 t1 t2 t3"
    assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["length"]
    usage = [one["usage"] for one in found if one.get("usage")]
    assert usage == [{"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}]
    assert not [one for one in without if one.get("usage")]


def test_whole_answers_eos_and_token_ids() -> None:
    with fake("--mode", "timed", "--ttft-ms", "1", "--itl-ms", "1", "--eos-after", "2", "--vocab", "10") as url:
        ask = {"prompt": [1, 2, 9], "max_tokens": 5}
        stopped = read_json(url + "/v1/completions", body=ask)
        assert stopped["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        assert stopped["choices"][0]["finish_reason"] == "stop"
        full = read_json(url + "/v1/completions", body={**ask, "ignore_eos": True})
        assert full["usage"]["completion_tokens"] == 5
        assert read_json(url + "/tokenize", body={"content": full["choices"][0]["text"]}) == {"tokens": [0, 1, 2, 3, 4]}
        assert read_json(url + "/detokenize", body={"tokens": [3, 4]}) == {"content": "t3 t4"}
        chat = read_json(
            url + "/v1/chat/completions", body={"messages": [{"role": "user", "content": "a b"}], "max_tokens": 1}
        )
        assert chat["choices"][0]["message"]["content"] == " t0"
        assert read_page(url + "/v1/completions", body={"prompt": [10]}).status == 400


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": []}, {"prompt": "a", "max_tokens": 0}, {"prompt": "a", "max_tokens": 99}, {"prompt": "a", "n": 2},
     {"prompt": "a", "max_tokens": "x"}, {"prompt": ["a", "b"]}, {"prompt": [-1]}],
)  # fmt: skip
def test_bad_requests_are_400_with_a_message(body: dict[str, Any]) -> None:
    with fake("--context", "64") as url:
        reply = read_page(url + "/v1/completions", body=body)
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["message"]


def test_pages_and_refusals() -> None:
    with fake("--api-key", "secret", "--model", "mine", "--slots", "3") as url:
        assert read_page(url + "/health").status == 200
        assert read_page(url + "/v1/models").status == 401
        assert read_json(url + "/v1/models", api_key="secret")["data"][0]["id"] == "mine"
        assert read_json(url + "/props", api_key="secret")["total_slots"] == 3
        assert len(read_json(url + "/slots", api_key="secret")) == 3
        assert read_page(url + "/nothing", api_key="secret").status == 404
        assert read_page(url + "/health", body={}, api_key="secret").status == 405


@pytest.mark.parametrize("mode", ["timed", "batched"])
def test_an_answer_is_counted_once(mode: str) -> None:
    with fake("--mode", mode, "--dialect", "tgi") as url:
        read_json(url + "/v1/completions", body={"prompt": "a b", "max_tokens": 2})
        assert "tgi_request_count 1\n" in read_page(url + "/metrics").text


@pytest.mark.parametrize(("dialect", "output_at_once"), [("llamacpp", 0), ("vllm", 1)])
def test_metrics_while_running_and_after(dialect: str, output_at_once: int) -> None:
    async def watch(url: str) -> tuple[str, str]:
        busy = asyncio.create_task(stream(url, {"prompt": "a b c", "max_tokens": 3}))
        queued = asyncio.create_task(stream(url, {"prompt": "d", "max_tokens": 1}))
        await asyncio.sleep(0.3)
        during = await asyncio.to_thread(lambda: read_page(url + "/metrics").text)
        await busy
        await queued
        return during, await asyncio.to_thread(lambda: read_page(url + "/metrics").text)

    options = ["--slots", "1", "--step-ms", "200", "--step-ms-per-seq", "0", "--prefill-tokens-per-s", "1e9"]
    with fake(*options, "--dialect", dialect, "--kv-tokens", "100") as url:
        texts = asyncio.run(watch(url))
    during, after = (to_sample(text, 0) for text in texts)
    assert (during.running, during.waiting) == (1, 1)
    assert during.prompt_tokens_total == 3
    assert during.output_tokens_total == output_at_once  # llama.cpp counts an answer when it has ended
    assert (after.running, after.waiting) == (0, 0)
    assert (after.prompt_tokens_total, after.output_tokens_total, after.steps_total) == (4, 4, 4)
    assert after.prefill_seconds_total == pytest.approx(0.4)
    assert after.decode_seconds_total == pytest.approx(0.4)
    if dialect == "vllm":
        assert during.kv_used_ratio == pytest.approx(0.04)
    else:
        assert isinstance(during.kv_used_ratio, Missing)


def test_errors_come_at_their_rate() -> None:
    with fake("--mode", "timed", "--ttft-ms", "0", "--error-rate", "0.25") as url:
        found = [read_page(url + "/v1/completions", body={"prompt": "a", "max_tokens": 1}).status for _ in range(12)]
    assert found.count(503) == 3
    assert found.count(200) == 9


def test_reset_malformed_and_stalled_streams() -> None:
    body = {"prompt": "a", "max_tokens": 9}
    quick = ["--mode", "timed", "--ttft-ms", "1", "--itl-ms", "1", "--fault-every", "2"]
    with fake(*quick, "--reset-after", "3") as url:
        assert len(documents(asyncio.run(stream(url, body)))) == 10
        with pytest.raises(ConnectionResetError):
            asyncio.run(stream(url, body))
    with fake(*quick, "--malformed-after", "3") as url:
        asyncio.run(stream(url, body))
        with pytest.raises(json.JSONDecodeError):
            documents(asyncio.run(stream(url, body)))
    with fake(*quick, "--stall-after", "3") as url:
        asyncio.run(stream(url, body))
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(stream(url, body), 0.5))
    with fake("--stall") as url, pytest.raises(HttpError, match="did not answer"):
        read_page(url + "/health", timeout_s=0.3)


def test_death_delay_and_failure_at_start() -> None:
    with fake("--startup-delay", "0.5") as url:
        assert read_page(url + "/health").status == 503
        time.sleep(0.6)
        assert read_page(url + "/health").status == 200
    with fake("--mode", "timed", "--ttft-ms", "0", "--die-after", "2") as url:
        assert read_page(url + "/v1/completions", body={"prompt": "a"}).status == 200
        with pytest.raises(HttpError):
            read_page(url + "/v1/completions", body={"prompt": "a"})
    run = [sys.executable, "-m", "powerband.engines.fake_server"]
    failed = subprocess.run([*run, "--fail-start"], capture_output=True, text=True, timeout=20)
    assert failed.returncode == 1
    assert "planted failure" in failed.stderr
    wrong = subprocess.run([*run, "--error-rate", "2"], capture_output=True, text=True, timeout=20)
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines() == ["error: error_rate=2.0 is no share", "hint: accepted: 0 to 1"]


def test_it_writes_down_when_each_token_was_due(tmp_path: Path) -> None:
    log = tmp_path / "times.jsonl"
    with fake("--mode", "timed", "--ttft-ms", "20", "--itl-ms", "5", "--log-times", str(log)) as url:
        asyncio.run(stream(url, {"prompt": "a", "max_tokens": 3}))
    line = json.loads(log.read_text())
    gaps = [round((due - line["read_s"]) * 1e3, 3) for due in line["due_s"]]
    assert gaps == [20, 25, 30]


def test_one_connection_serves_many_requests_in_turn() -> None:
    async def talk(url: str) -> bytes:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        one = b'{"prompt":"a","max_tokens":2}'
        request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(one), one)
        writer.write(request + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + request)  # before any answer has come
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = await reader.read(-1)
        writer.close()
        return data

    with fake("--mode", "timed", "--ttft-ms", "5", "--itl-ms", "1") as url:
        data = asyncio.run(talk(url))
    kinds = [part.split(b"\r\n")[0] for part in data.split(b"HTTP/1.1 ")[1:]]
    assert kinds == [b"200 OK"] * 4
    assert data.count(b"completion_tokens") == 2
    assert data.endswith(b'{"status":"ok"}')
