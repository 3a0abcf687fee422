"""Recording vLLM's own profiler, against a server that writes what vLLM writes."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerband.engines import vllm_profile
from powerband.engines.vllm_profile import profiled, profiler_knobs
from powerband.records.errors import EngineError


class Handler(http.server.BaseHTTPRequestHandler):
    folder: Path
    status = 200
    writes = True

    def do_POST(self) -> None:
        if self.path == "/stop_profile" and self.writes:
            (self.folder / "host_1234.async_llm.17.pt.trace.json.gz").write_bytes(b"front end")
            (self.folder / "rank0.17.pt.trace.json.gz").write_bytes(b"worker")
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Handler, "folder", tmp_path, raising=False)
    monkeypatch.setattr(vllm_profile, "_SETTLE_S", 0.3)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_workers_new_traces_are_given(url: str, tmp_path: Path) -> None:
    (tmp_path / "rank0.3.pt.trace.json.gz").write_bytes(b"of an earlier recording")
    with profiled(url, tmp_path) as traces:
        assert traces == []
    assert [path.name for path in traces] == ["rank0.17.pt.trace.json.gz"]


def test_a_server_that_was_not_told_to_profile_says_how(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "status", 404)
    with pytest.raises(EngineError, match="start_profile is not there") as raised, profiled(url, tmp_path):
        pass
    assert "profiler_config" in raised.value.hint


def test_no_trace_is_an_error(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "writes", False)
    with pytest.raises(EngineError, match="wrote no trace"), profiled(url, tmp_path):
        pass


def test_the_knob_is_the_json_that_vllm_reads(tmp_path: Path) -> None:
    (text,) = profiler_knobs(tmp_path).values()
    assert isinstance(text, str)
    assert json.loads(text) == {
        "profiler": "torch",
        "torch_profiler_dir": str(tmp_path.resolve()),
        "torch_profiler_with_stack": False,
    }
