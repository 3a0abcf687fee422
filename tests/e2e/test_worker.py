"""The server around an in-process engine: what a client gets, counted against a backend whose tokens are known."""

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

from powerband.load.runner import run_load
from powerband.load.target import Target
from powerband.probes.engine_metrics import to_sample
from powerband.probes.http import read_json, read_page
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload
from tests.support.stub_backend import StubBackend, served


def complete(url: str, path: str = "/v1/completions", **body: object) -> tuple[int, str]:
    reply = read_page(url + path, body={"max_tokens": 4, **body}, timeout_s=10)
    return reply.status, reply.text


def test_a_whole_answer_has_text_usage_and_reason() -> None:
    with served(StubBackend()) as url:
        document = read_json(url + "/v1/completions", body={"prompt": [1, 2, 3], "max_tokens": 4}, timeout_s=10)
    assert document["choices"][0] == {"index": 0, "finish_reason": "length", "text": " 0 1 2 3"}
    assert document["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_a_stop_id_ends_the_answer_unless_it_is_to_be_ignored() -> None:
    with served(StubBackend()) as url:
        stopped = json.loads(complete(url, prompt=[1], max_tokens=9)[1])
        ignored = json.loads(complete(url, prompt=[1], max_tokens=9, ignore_eos=True)[1])
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == 5  # tokens 0 to 4; 5 is the stop id
    assert ignored["choices"][0]["finish_reason"] == "length"
    assert ignored["usage"]["completion_tokens"] == 9


def test_streams_name_their_tokens_so_that_half_characters_count() -> None:
    """Token 7 shows no text until token 8 completes the character; the client counts nine tokens all the same."""
    with served(StubBackend()) as url:
        target = Target(url=url, model="stub-model", extra_body={"ignore_eos": True})
        requests = tuple(RequestSpec(offset_ns=0, input_tokens=6, output_tokens=9) for _ in range(12))
        loaded = run_load(
            target, Workload(requests=requests, source="test", concurrency=4), t0_ns=time.monotonic_ns(), deadline_s=20
        )
    assert [trace.status for trace in loaded.traces] == ["ok"] * 12
    assert all(trace.input_tokens == 6 and trace.chunk_tokens == (1,) * 9 for trace in loaded.traces)


def test_a_stream_ends_with_usage_and_done() -> None:
    with served(StubBackend()) as url:
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        status, text = complete(url, prompt=[1], max_tokens=9, **options)
    assert status == 200
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["usage"]["completion_tokens"] == 9
    shown = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    assert shown == " 0 1 2 3 4 5 6é"
    assert [t for chunk in chunks if chunk["choices"] for t in chunk["choices"][0]["token_ids"]] == list(range(9))


def test_chat_goes_through_the_template() -> None:
    with served(StubBackend()) as url:
        messages = [{"role": "user", "content": "how are you"}]
        document = json.loads(complete(url, "/v1/chat/completions", messages=messages)[1])
    assert document["usage"]["prompt_tokens"] == 4  # "user:" and three words
    assert document["choices"][0]["message"]["content"] == " 0 1 2 3"


def test_what_cannot_be_served_is_refused() -> None:
    with served(StubBackend()) as url:
        assert complete(url, prompt=[100])[0] == 400  # outside the vocabulary
        assert complete(url, prompt="")[0] == 400
        assert complete(url, prompt=[1], n=2)[0] == 400
        assert complete(url, prompt=[1], temperature=0.7)[0] == 400
        assert complete(url, "/v1/chat/completions")[0] == 400
        assert complete(url, "/nowhere")[0] == 404
        assert complete(url, "/health")[0] == 405
        status, text = complete(url, prompt=[1] * 62)
        assert status == 500
        assert "62 prompt and 4 answer tokens: the context holds 64" in text
        status, text = complete(url, prompt=[99])
        assert (status, "planted failure" in text) == (500, True)
        assert complete(url, prompt=[1])[0] == 200  # and it goes on serving


def test_a_client_that_leaves_cancels_its_job() -> None:
    backend = StubBackend(step_s=0.05)
    with served(backend) as url:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0)
        connection.request(
            "POST", "/v1/completions", json.dumps({"prompt": [1], "max_tokens": 60, "stream": True, "ignore_eos": True})
        )
        response = connection.getresponse()
        response.read(10)
        response.close()
        connection.close()
        end = time.monotonic() + 5
        while not backend.cancelled and time.monotonic() < end:
            time.sleep(0.01)
    assert len(backend.cancelled) == 1
    assert backend.counters.running == backend.counters.waiting == 0


def test_text_is_tokenised_in_line_or_ahead() -> None:
    for threads, where in ((0, "stub-0"), (1, "ThreadPoolExecutor")):
        backend = StubBackend()
        with served(backend, threads) as url:
            backend.tokenized_in.clear()
            assert complete(url, prompt="two words")[0] == 200
        assert len(backend.tokenized_in) == 1
        assert backend.tokenized_in[0].startswith(where)


def test_metrics_are_read_under_the_common_names() -> None:
    with served(StubBackend()) as url:
        for _ in range(3):
            complete(url, prompt=[1, 2], max_tokens=4)
        sample = to_sample(read_page(url + "/metrics").text, 17)
        props = read_json(url + "/props")
    assert sample.prompt_tokens_total == 6
    assert sample.output_tokens_total == 12
    assert sample.running == sample.waiting == 0
    assert sample.steps_total == 12
    assert not isinstance(sample.decode_seconds_total, Missing)
    assert isinstance(sample.kv_used_ratio, Missing)  # the stub has no cache
    assert props["settings"]["step_s"] == 0.002
    assert props["settings"]["tokenize_s_per_token"] > 0
