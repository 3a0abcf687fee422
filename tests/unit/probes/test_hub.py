"""The hub by range requests, against a small hub on loopback; and what is said where there is none."""

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from powerband.probes.checkpoint import read_model
from powerband.records.errors import RequestError
from tests.unit.probes.test_safetensors import CONFIG, shapes, write_safetensors


class HubHandler(BaseHTTPRequestHandler):
    """Serves ``files`` with ranges; ``store`` redirects weights as the real hub does."""

    files: ClassVar[dict[str, bytes]] = {}
    seen: ClassVar[list[tuple[str, str, str]]] = []
    status: ClassVar[int] = 0

    server: HTTPServer

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Range", ""), self.headers.get("Authorization", "")))
        name = self.path.rsplit("/", 1)[-1]
        if self.status:
            return self.answer(self.status, b"")
        if name.endswith(".safetensors") and not self.path.startswith("/store/"):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/store/{name}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        if name not in self.files:
            return self.answer(404, b"")
        first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
        return self.answer(206, self.files[name][first : last + 1])

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[HubHandler]]:
    weights = write_safetensors(tmp_path / "w.safetensors", shapes()).read_bytes()
    HubHandler.files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": weights}
    HubHandler.seen, HubHandler.status = [], 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    server.daemon_threads = False  # joined when the server closes, so that no socket is left open
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield HubHandler
    server.shutdown()
    server.server_close()
    thread.join()


def test_only_headers_travel(hub: type[HubHandler], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    model = read_model("someone/small-model")
    assert (model.name, model.basis) == ("someone/small-model", "measured")
    header = struct.unpack("<Q", hub.files["model.safetensors"][:8])[0]
    ranges = [span for path, span, _ in hub.seen if path.startswith("/store/")]
    assert ranges == ["bytes=0-7", f"bytes=8-{7 + header}"]
    # the token goes to the hub, and not to the store it redirects to
    assert {token for path, _, token in hub.seen if path.startswith("/store/")} == {""}
    assert {token for path, _, token in hub.seen if not path.startswith("/store/")} == {"Bearer secret"}


def test_a_model_without_safetensors_is_computed_from_its_config(hub: type[HubHandler]) -> None:
    del hub.files["model.safetensors"]
    assert read_model("someone/small-model").basis == "computed"


def test_a_gated_or_missing_model_says_so(hub: type[HubHandler]) -> None:
    hub.status = 401
    with pytest.raises(RequestError, match="refuses") as caught:
        read_model("someone/gated")
    assert "HF_TOKEN" in caught.value.hint
    hub.status = 404
    with pytest.raises(RequestError, match=r"no config\.json on the hub"):
        read_model("someone/nothing")
    hub.status = 503
    with pytest.raises(RequestError, match="does not answer"):
        read_model("someone/nothing")


def test_offline_is_one_clean_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(RequestError, match="does not answer") as caught:
        read_model("someone/model")
    assert "local folder" in caught.value.hint
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RequestError, match="HF_HUB_OFFLINE is set"):
        read_model("someone/model")


def test_a_cached_snapshot_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models--someone--model" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert read_model("someone/model").name == "someone/model"


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c", "no such model"])
def test_what_is_no_id_is_not_looked_up(name: str) -> None:
    with pytest.raises(RequestError, match="no model at"):
        read_model(name)
