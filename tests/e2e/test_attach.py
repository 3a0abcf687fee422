"""Attaching to a server that is not ours: what is found, and every way in which it is not what was meant."""

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from powerband.engines.base import get_engine
from powerband.engines.openai import KEY_VARIABLE, attach
from powerband.probes.host import serving_pid
from powerband.records.config import Effective, EngineConfig
from powerband.records.errors import EngineError, RequestError
from powerband.records.value import Missing
from tests.support.answering import serving
from tests.support.faking import fake


def pages(answers: dict[str, tuple[int, str]]) -> contextlib.AbstractContextManager[str]:
    """A web server with these pages and 404 for all others."""
    return serving(lambda path, _: answers.get(path, (404, "not here")))


def config(url: str, **knobs: str) -> EngineConfig:
    return EngineConfig(engine="openai", model="none", knobs={"url": url, **knobs})


@pytest.mark.parametrize("dialect", ["llamacpp", "vllm"])
def test_a_server_is_recognised_by_its_metrics(dialect: str) -> None:
    with fake("--dialect", dialect, "--model", "mine") as url:
        found = attach(url + "/v1")
    assert (found.url, found.models, found.dialect) == (url, ("mine",), dialect)


def test_samples_settings_and_stop_of_an_attached_server(tmp_path: Path) -> None:
    with fake("--slots", "6", "--model", "mine", "--context", "512") as url:
        running = get_engine("openai").start(config(url), tmp_path)
        assert (running.model_id, running.version) == ("mine", "llama.cpp powerband-fake")
        assert running.pid == serving_pid(url)  # to watch; stopping leaves it alone
        assert running.sample(0).running == 0
        effective = running.effective()
        assert isinstance(effective, Effective)
        assert (effective.values["n_parallel"], effective.values["n_ctx_slot"]) == (6, 512)
        running.stop()
        assert running.alive()
        assert running.log_tail() == ()
    assert not running.alive()
    assert isinstance(running.sample(0).running, Missing)
    assert isinstance(running.effective(), Missing)


def test_a_key_is_wanted_refused_and_taken_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = get_engine("openai")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with fake("--api-key", "secret") as url:
        with pytest.raises(RequestError, match="401: it wants a key") as raised:
            engine.start(config(url), tmp_path)
        assert KEY_VARIABLE in raised.value.hint
        monkeypatch.setenv(KEY_VARIABLE, "wrong")
        with pytest.raises(RequestError, match="401: the key was refused"):
            engine.start(config(url), tmp_path)
        monkeypatch.setenv(KEY_VARIABLE, "secret")
        assert engine.start(config(url), tmp_path).sample(0).waiting == 0


def test_nothing_answers(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(EngineError, match="no connection to") as raised:
            get_engine("openai").start(config(url), tmp_path)
    assert "is the server up" in raised.value.hint


def test_something_that_does_not_speak_http(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            client, _ = listener.accept()
            client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            client.close()

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(EngineError, match=r"does not speak HTTP|in the middle|reset"):
            get_engine("openai").start(config(f"http://127.0.0.1:{listener.getsockname()[1]}"), tmp_path)
        thread.join(5)


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/v1/models": (200, "<html>hello</html>")},
        {"/v1/models": (200, '{"data": 3}')},
        {"/v1/models": (200, "[]")},
    ],
)
def test_a_web_server_that_is_none_of_ours(tmp_path: Path, answers: dict[str, tuple[int, str]]) -> None:
    with pages(answers) as url, pytest.raises(RequestError, match="not an OpenAI-compatible server") as raised:
        get_engine("openai").start(config(url), tmp_path)
    assert "/v1/models" in raised.value.hint


def test_a_server_that_is_loading_is_no_wrong_request(tmp_path: Path) -> None:
    with pages({"/v1/models": (503, "loading")}) as url, pytest.raises(EngineError, match="HTTP 503"):
        get_engine("openai").start(config(url), tmp_path)


def test_a_server_without_metrics_or_settings_says_so(tmp_path: Path) -> None:
    with pages({"/v1/models": (200, '{"data": [{"id": "a"}, {"id": "b"}]}')}) as url:
        running = get_engine("openai").start(config(url, served_model="b"), tmp_path)
        assert running.model_id == "b"
        waiting = running.sample(0).waiting
        assert isinstance(waiting, Missing)
        assert "HTTP 404" in waiting.missing
        assert isinstance(running.effective(), Missing)
        with pytest.raises(RequestError, match="does not serve model 'c'") as raised:
            get_engine("openai").start(config(url, served_model="c"), tmp_path)
    assert "a, b" in raised.value.hint


def test_vllm_and_sglang_tell_their_version_and_settings(tmp_path: Path) -> None:
    models = {"/v1/models": (200, '{"data": [{"id": "a"}]}')}
    cache = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="2048"} 1.0\nvllm:num_requests_running 2\n'
    with pages({**models, "/version": (200, '{"version": "0.11.0"}'), "/metrics": (200, cache)}) as url:
        running = get_engine("openai").start(config(url), tmp_path)
        effective = running.effective()
        assert running.version == "vLLM 0.11.0"
        assert isinstance(effective, Effective)
        assert effective.values["num_gpu_blocks"] == "2048"
    with pages({**models, "/get_server_info": (200, '{"version": "0.5", "tp_size": 2, "list": [1]}')}) as url:
        running = get_engine("openai").start(config(url), tmp_path)
        effective = running.effective()
        assert running.version == "SGLang 0.5"
        assert isinstance(effective, Effective)
        assert effective.values == {"version": "0.5", "tp_size": 2}


@pytest.mark.parametrize("url", ["", "ftp://a", "http://a:0"])
def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    with pytest.raises(RequestError) as raised:
        get_engine("openai").start(config(url), tmp_path)
    assert raised.value.hint
