"""An engine's own profiler, over a real socket: what is posted, what is found, and what goes wrong."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from powerband.probes.engine_profiler import record_engine
from powerband.records.errors import EngineError, RequestError


class Server(ThreadingHTTPServer):
    """Writes a trace when the recording is stopped, as vLLM does; ``status`` is what it answers."""

    folder: Path
    status = 200
    posted: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.posted.append(self.path)
        if self.path == "/stop_profile" and self.server.status == 200:
            (self.server.folder / "rank0.pt.trace.json.gz").write_bytes(b"a trace")
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.folder, made.posted = tmp_path, []
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_only_what_this_recording_wrote_is_found(server: Server, tmp_path: Path) -> None:
    (tmp_path / "older.json.gz").write_bytes(b"of yesterday")
    found = record_engine(address(server), tmp_path, 0.05)
    assert [path.name for path in found] == ["rank0.pt.trace.json.gz"]
    assert server.posted == ["/start_profile", "/stop_profile"]


def test_an_engine_without_a_profiler_is_told_how_to_get_one(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(RequestError, match="HTTP 404: no profiler can be started") as caught:
        record_engine(address(server), tmp_path, 0.01)
    assert "--profiler-config" in caught.value.hint


def test_an_engine_that_fails_and_a_folder_that_is_none_are_errors(server: Server, tmp_path: Path) -> None:
    server.status = 500
    with pytest.raises(EngineError, match="HTTP 500"):
        record_engine(address(server), tmp_path, 0.01)
    with pytest.raises(RequestError, match="no folder"):
        record_engine(address(server), tmp_path / "none", 0.01)
