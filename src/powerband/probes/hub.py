"""A model on a Hugging Face hub: its config and the headers of its weights, by range requests, without the weights.

Honours HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE; a copy in the local hub cache is used before the network.
"""

import http.client
import os
import re
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

from powerband.probes.safetensors import StoredTensor, parse_header, parse_length, shard_names
from powerband.records.errors import RequestError

_TIMEOUT_S = 10.0
_SMALL_LIMIT_BYTES = 64 << 20
_REDIRECTS = 5
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None and text.count("/") <= 1 and not text.endswith((".json", ".gguf"))


def cached_folder(model: str) -> Path | None:
    """The newest snapshot of ``model`` in the local hub cache; None where there is none."""
    home = os.environ.get("HF_HUB_CACHE") or str(Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub")
    snapshots = Path(home).expanduser() / f"models--{model.replace('/', '--')}" / "snapshots"
    try:
        found = [folder for folder in snapshots.iterdir() if (folder / "config.json").is_file()]
    except OSError:
        return None
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


class Hub:
    """One model's files on the hub."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._base = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")

    def config(self) -> bytes:
        """config.json; raises RequestError where the hub does not answer or has no such model."""
        data = self._get("config.json", 0, _SMALL_LIMIT_BYTES)
        if data is None:
            raise RequestError(
                f"{self.model} has no config.json on the hub", hint="check the id, or name a local folder"
            )
        return data

    def tensors(self) -> list[StoredTensor]:
        """Headers of every weight file; empty where the model has no safetensors."""
        index = self._get("model.safetensors.index.json", 0, _SMALL_LIMIT_BYTES)
        names = shard_names(index, f"{self.model} index") if index else ["model.safetensors"]
        tensors: list[StoredTensor] = []
        for name in names:
            source = f"{self.model}/{name}"
            first = self._get(name, 0, 8)
            if first is None:
                return []
            length = parse_length(first, source, None)
            header = self._get(name, 8, length)
            if header is None or len(header) != length:
                raise RequestError(f"the hub cut the header of {source} short", hint="try again")
            tensors += parse_header(header, source)
        return tensors

    def _get(self, name: str, start: int, count: int) -> bytes | None:
        """At most ``count`` bytes of a file from ``start``; None where the hub has no such file."""
        if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
            raise RequestError(f"{self.model} is not in the local hub cache, and HF_HUB_OFFLINE is set", hint=_HINT)
        url = f"{self._base}/{quote(self.model)}/resolve/main/{quote(name)}"
        try:
            return _fetch(url, start, count)
        except RequestError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RequestError(
                f"{self.model} is not here, and the hub at {self._base} does not answer: {error}", hint=_HINT
            ) from None


_HINT = "name a local folder with config.json, or a .gguf file; weights are not needed"


def _fetch(url: str, start: int, count: int) -> bytes | None:
    token = os.environ.get("HF_TOKEN", "")
    origin = urlsplit(url).netloc
    for _ in range(_REDIRECTS):
        parts = urlsplit(url)
        plain = parts.scheme == "http"
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an address: {url[:80]}")
        kind = http.client.HTTPConnection if plain else http.client.HTTPSConnection
        connection = kind(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        try:
            headers = {"Range": f"bytes={start}-{start + count - 1}", "Accept-Encoding": "identity"}
            if token and parts.netloc == origin:  # never hand the token to the store a redirect leads to
                headers["Authorization"] = f"Bearer {token}"
            connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path, headers=headers)
            with connection.getresponse() as answer:
                if answer.status in (301, 302, 303, 307, 308):
                    url = urljoin(url, answer.getheader("Location", ""))
                    continue
                return _body(answer, url, start, count)
        finally:
            connection.close()
    raise ValueError("too many redirects")


def _body(answer: http.client.HTTPResponse, url: str, start: int, count: int) -> bytes | None:
    if answer.status == 206 or (answer.status == 200 and start == 0):
        return answer.read(count)
    if answer.status == 200:
        raise ValueError("the server does not answer range requests")
    if answer.status == 404:
        return None
    if answer.status in (401, 403):
        raise RequestError(
            f"the hub refuses {urlsplit(url).path} ({answer.status})",
            hint="no such model, or a gated one: accept its licence and set HF_TOKEN",
        )
    raise ValueError(f"status {answer.status}")
