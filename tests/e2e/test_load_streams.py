"""What a server may send: every shape of stream is read as what it is, and every failure is named."""

import json
import ssl
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from powerband.load.runner import run_load
from powerband.load.target import Loaded, Target
from powerband.load.traffic import build_workload
from powerband.records.errors import EngineError, RequestError
from powerband.records.request import RequestTrace
from tests.support.scripted_server import (
    END,
    HEAD,
    HOLD,
    OPEN_HEAD,
    RESET,
    Script,
    ScriptedServer,
    Seen,
    chunk,
    event,
    reply,
    token,
)

USAGE = {"prompt_tokens": 9, "completion_tokens": 3}
DONE = b"data: [DONE]\n\n"


def load(url: str, spec: str = "in=4,out=3,concurrency=1", requests: int = 1, **options: Any) -> Loaded:
    deadline_s = options.pop("deadline_s", 20.0)
    target = Target(url, "m", **options)
    return run_load(target, build_workload(spec, requests=requests), t0_ns=time.monotonic_ns(), deadline_s=deadline_s)


def answer(script: Script, **options: Any) -> RequestTrace:
    with ScriptedServer(lambda n, seen: script).running() as server:
        loaded = load(server.url, **options)
    assert len(loaded.traces) == 1
    return loaded.traces[0]


def stream(*events: bytes) -> Script:
    return [(0.0, HEAD), *((0.002, chunk(data)) for data in events), (0.0, END)]


THREE = (token(), token(), token())
LAST = token("", "length", usage=USAGE)


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("chunked", stream(*THREE, LAST, DONE)),
        ("usage after the finish", stream(*THREE, token("", "length"), event({"choices": [], "usage": USAGE}), DONE)),
        ("finish on the last token", stream(token(), token(), token("x", "length", usage=USAGE), DONE)),
        ("no [DONE]", stream(*THREE, LAST)),
        ("[DONE] and no finish", stream(*THREE, event({"choices": [], "usage": USAGE}), DONE)),
        ("CRLF lines", stream(*(data.replace(b"\n", b"\r\n") for data in (*THREE, LAST, DONE)))),
        ("comments between", stream(b": ping\n\n", THREE[0], b": ping\n\n", THREE[1], THREE[2], LAST, DONE)),
        ("all at once", [(0.0, HEAD + b"".join(map(chunk, (*THREE, LAST, DONE))) + END)]),
        ("ended by closing", [(0.0, OPEN_HEAD), *((0.002, data) for data in (*THREE, LAST, DONE))]),
        ("closed without a blank line", [(0.0, OPEN_HEAD), (0.0, b"".join(THREE)), (0.0, LAST[:-2])]),
        ("[DONE] and the end kept back", [*stream(*THREE, LAST, DONE)[:-1], (0.0, HOLD)]),
        ("byte by byte", [(0.0, bytes([b])) for b in HEAD + b"".join(map(chunk, (*THREE, LAST, DONE))) + END]),
        ("100 Continue first", [(0.0, b"HTTP/1.1 100 Continue\r\n\r\n"), *stream(*THREE, LAST, DONE)]),
        ("empty text that is a token", stream(token(), token(""), token(), LAST, DONE)),
        ("running usage", stream(*(token(usage=USAGE | {"completion_tokens": n}) for n in (1, 2, 3)), LAST, DONE)),
    ],
)
def test_three_tokens_are_three_tokens(name: str, script: Script) -> None:
    trace = answer(script)
    assert (trace.status, trace.error, trace.output_tokens) == ("ok", None, 3)
    assert trace.input_tokens == 9
    assert len(trace.t_chunks_ns) == len(trace.chunk_tokens)
    assert list(trace.t_chunks_ns) == sorted(trace.t_chunks_ns)


@pytest.mark.parametrize(
    ("name", "script", "error"),
    [
        ("503", [(0.0, reply(503, b'{"error": {"message": "loading"}}'))], "http_503: loading"),
        ("404 in HTML", [(0.0, reply(404, b"<h1>no</h1>", b"text/html"))], "http_404: <h1>no</h1>"),
        ("an event says error", stream(*THREE, event({"error": {"message": "out of memory"}})), "stream_error: out of"),
        ("llama.cpp's old error", stream(THREE[0], b'error: {"message": "x"}\n\n'), "stream_error: x"),
        ("reset in mid-stream", [*stream(*THREE)[:-1], (0.02, RESET)], "reset: closed by the server after 3 chunks"),
        ("reset before the answer", [(0.0, RESET)], "reset: closed by the server before any answer"),
        ("ended without a finish", stream(*THREE), "short: the stream ended after 3 chunks without a finish"),
        ("no token", stream(LAST, DONE), "short: the answer held no token"),
        ("no JSON", stream(THREE[0], b'data: {"choices":\n\n'), "malformed: "),
        ("no event", stream(THREE[0], b"data: hello\n\n"), "malformed: "),
        ("JSON of another shape", stream(b"data: [1, 2]\n\n"), "malformed: "),
        ("no HTTP", [(0.0, b"SSH-2.0-OpenSSH_9.6\r\n")], "malformed: HTTP: "),
        ("a bad chunk length", [(0.0, HEAD + b"zz\r\n")], "malformed: HTTP: "),
        ("HTML with 200", [(0.0, reply(200, b"<html>", b"text/html"))], "malformed: "),
    ],
)
def test_a_failure_is_named(name: str, script: Script, error: str) -> None:
    trace = answer(script)
    assert trace.status == "error"
    assert trace.error is not None
    assert trace.error.startswith(error)


def test_a_whole_answer_counts_by_its_usage() -> None:
    body = json.dumps({"choices": [{"text": "a b c", "finish_reason": "length"}], "usage": USAGE}).encode()
    trace = answer([(0.02, reply(200, body))])
    assert (trace.status, trace.chunk_tokens) == ("ok", (3,))


def test_a_request_that_takes_too_long_is_given_up() -> None:
    trace = answer([*stream(*THREE)[:-1], (0.0, HOLD)], timeout_s=0.3)
    assert trace.error == "timeout: no end within 0.3 s, 3 chunks came"
    assert trace.output_tokens == 3


def test_chat_counts_reasoning_and_tool_calls_from_the_first() -> None:
    def delta(**fields: Any) -> bytes:
        return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})

    deltas = [delta(role="assistant", content=""), delta(reasoning_content="hm"), delta(content="a")]
    deltas.append(delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]))
    script = [(0.0, HEAD), (0.0, chunk(deltas[0])), *((0.05, chunk(data)) for data in deltas[1:])]
    with ScriptedServer(lambda n, seen: [*script, (0.0, chunk(LAST) + chunk(DONE) + END)]).running() as server:
        trace = load(server.url, endpoint="chat").traces[0]
        assert server.seen[0].path == "/v1/chat/completions"
    assert (trace.status, trace.output_tokens, len(trace.t_chunks_ns)) == ("ok", 3, 3)
    # the role chunk came 50 ms before the first token and is not one
    assert trace.t_send_ns is not None
    assert trace.t_chunks_ns[0] - trace.t_send_ns > 45_000_000


def test_tgi_streams_are_read() -> None:
    def tgi(text: str, whole: str | None = None) -> bytes:
        details = {"finish_reason": "length", "generated_tokens": 3} if whole else None
        return event({"index": 1, "token": {"id": 1, "text": text}, "generated_text": whole, "details": details})

    script = stream(tgi("a"), tgi("b"), tgi("c", "abc"))
    with ScriptedServer(lambda n, seen: script).running() as server:
        trace = load(server.url, endpoint="tgi").traces[0]
        assert server.seen[0].path == "/generate_stream"
        assert server.seen[0].body["parameters"]["max_new_tokens"] == 3
    assert (trace.status, trace.chunk_tokens) == ("ok", (1, 1, 1))


def test_llamacpp_streams_are_read() -> None:
    events = [event({"content": text, "stop": False}) for text in "abc"]
    last = event({"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 3, "tokens_evaluated": 4})
    with ScriptedServer(lambda n, seen: stream(*events, last)).running() as server:
        trace = load(server.url, endpoint="llamacpp").traces[0]
        assert (server.seen[0].path, server.seen[0].body["n_predict"]) == ("/completion", 3)
    assert (trace.status, trace.chunk_tokens, trace.input_tokens) == ("ok", (1, 1, 1), 4)


def test_the_body_holds_what_was_asked_and_the_extra_fields() -> None:
    script = stream(*THREE, LAST, DONE)
    with ScriptedServer(lambda n, seen: script).running() as server:
        load(server.url + "/v1", api_key="secret", extra_body={"ignore_eos": True, "temperature": 0.7})
        seen = server.seen[0]
    assert seen.path == "/v1/completions"
    assert seen.headers["authorization"] == "Bearer secret"
    assert seen.headers["connection"] == "close"
    wanted = {"model": "m", "stream": True, "ignore_eos": True, "temperature": 0.7, "max_tokens": 3}
    assert wanted.items() <= seen.body.items()
    assert len(seen.body["prompt"].split()) == 4


@pytest.mark.parametrize(("keep_alive", "connections"), [(True, 1), (False, 5)])
def test_connections_are_reused_only_when_asked(keep_alive: bool, connections: int) -> None:
    with ScriptedServer(lambda n, seen: stream(*THREE, LAST, DONE)).running() as server:
        loaded = load(server.url, requests=5, keep_alive=keep_alive)
        assert len({seen.connection for seen in server.seen}) == connections
    assert [trace.status for trace in loaded.traces] == ["ok"] * 5


def test_a_closed_loop_keeps_its_number_in_flight() -> None:
    with ScriptedServer(lambda n, seen: [(0.02, b""), *stream(*THREE, LAST, DONE)]).running() as server:
        loaded = load(server.url, "in=4,out=3,concurrency=6", requests=40)
        assert server.most_at_once == 6
    assert [trace.index for trace in loaded.traces] == list(range(40))


@pytest.mark.parametrize("when", ["concurrency=4", "arrivals=burst"])
def test_turns_of_a_session_wait_for_each_other(when: str) -> None:
    with ScriptedServer(lambda n, seen: [(0.02, b""), *stream(*THREE, LAST, DONE)]).running() as server:
        loaded = load(server.url, f"in=8,out=3,turns=4,{when}", requests=12)
        sessions: dict[str, list[Seen]] = {}
        for seen in server.seen:
            sessions.setdefault(" ".join(seen.body["prompt"].split()[:8]), []).append(seen)
    assert [trace.status for trace in loaded.traces] == ["ok"] * 12
    assert [len(turns) for turns in sessions.values()] == [4, 4, 4]
    for turns in sessions.values():
        for earlier, later in pairwise(turns):
            assert later.t_ns >= earlier.t_end_ns - 1_000_000  # the server's own clock stops just after its last byte
            assert later.body["prompt"].startswith(earlier.body["prompt"])


def test_the_deadline_drops_what_was_due_and_leaves_out_what_was_not() -> None:
    def script(n: int, seen: Seen) -> Script:
        return stream(*THREE, LAST, DONE) if n % 2 else [*stream(*THREE)[:-1], (0.0, HOLD)]

    with ScriptedServer(script).running() as server:
        loaded = load(server.url, "in=4,out=3,arrivals=constant(10/s)", requests=100, deadline_s=1.05)
    assert loaded.stopped_because == "deadline"
    assert [trace.status for trace in loaded.traces] == ["dropped", "ok"] * 5 + ["dropped"]
    dropped = loaded.traces[0]
    assert (dropped.t_end_ns, dropped.output_tokens, dropped.error) == (None, 3, None)
    assert any("89 of 100 requests were not due yet" in note for note in loaded.notes)


@pytest.fixture
def certificate(tmp_path: Path) -> ssl.SSLContext:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    try:
        subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def test_each_request_that_times_out_over_tls_is_counted_once(
    certificate: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    def every_other(number: int, _: Seen) -> Script:
        return [(0.0, HOLD)] if number % 2 else stream(*THREE, LAST, DONE)

    with ScriptedServer(every_other, tls=certificate).running() as server:
        loaded = load(server.url, requests=10, verify_tls=False, timeout_s=0.2)
        cut_off = load(server.url, "in=4,out=3,arrivals=burst", requests=10, verify_tls=False, deadline_s=0.5)
    assert [trace.status for trace in loaded.traces] == ["ok", "error"] * 5
    assert [trace.status for trace in cut_off.traces].count("ok") == 5
    assert [record.getMessage() for record in caplog.records if "callback" in record.getMessage()] == []


def test_tls_is_spoken_and_checked(certificate: ssl.SSLContext) -> None:
    with ScriptedServer(lambda n, seen: stream(*THREE, LAST, DONE), tls=certificate).running() as server:
        loaded = load(server.url, "in=4,out=3,concurrency=3", requests=9, verify_tls=False, keep_alive=True)
        assert [trace.status for trace in loaded.traces] == ["ok"] * 9
        with pytest.raises(EngineError, match="CERTIFICATE_VERIFY_FAILED"):
            load(server.url)


def test_a_server_that_is_not_there_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="Connection refused"):
        load("http://127.0.0.1:9")


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "http://[::1"])
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="cannot read URL"):
        load(url)


def test_extra_fields_may_not_replace_the_prompt() -> None:
    with (
        ScriptedServer(lambda n, seen: stream(*THREE, LAST, DONE)).running() as server,
        pytest.raises(RequestError, match="overwrite"),
    ):
        load(server.url, extra_body={"prompt": "mine"})


def test_a_server_that_goes_away_gives_connect_errors() -> None:
    """The first answer comes; then nobody listens."""
    stop: list[Callable[[], None]] = []

    def script(n: int, seen: Seen) -> Script:
        stop[0]()
        return stream(*THREE, LAST, DONE)

    scripted = ScriptedServer(script)
    with scripted.running() as server:
        stop.append(server.stop_listening)
        loaded = load(server.url, "in=4,out=3,arrivals=constant(4/s)", requests=4)
    assert [trace.status for trace in loaded.traces] == ["ok", "error", "error", "error"]
    assert loaded.traces[1].error is not None
    assert loaded.traces[1].error.startswith("connect: Connection refused")
