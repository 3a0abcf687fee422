"""Read one page from a server: bounded in time and size, no proxy, no redirect, a new connection each time."""

import contextlib
import re
import socket
import ssl
import time
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httptools
import msgspec

from powerband.records.errors import MachineError, RequestError
from powerband.records.value import Record

MAX_PAGE_BYTES = 16 << 20


class Reply(Record):
    """Status, body and content type of an answer, whatever the status."""

    status: int
    body: bytes
    content_type: str = ""

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")


class HttpError(MachineError):
    """Nothing answered, the answer was not HTTP, or it was too long or too slow; the message says which."""


def base_url(text: str) -> str:
    """``http://host:port`` from what a user writes: the scheme may be left out, a trailing ``/v1`` is dropped.

    Raises RequestError where it is no http(s) address.
    """
    hint = "write an address such as http://localhost:8000"
    raw = text.strip()
    if "://" not in raw:
        raw = "http://" + raw
    refuse_password(raw)
    try:
        parts = urlsplit(raw)
        port = parts.port
    except ValueError:
        raise RequestError(f"{text!r} is not an address", hint=hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise RequestError(f"{text!r} is not an http address", hint=hint)
    check_address(raw, parts)
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def refuse_password(text: str) -> None:
    """Raises RequestError, which does not show it, for an address with a user name or password, however wrong."""
    authority = re.split(r"[/?#]", text.partition("://")[2] or text, maxsplit=1)[0]
    if "@" in authority:
        hint = (
            "leave it out, and give the server's key with --api-key, or in OPENAI_API_KEY where there is no such option"
        )
        raise RequestError("the address holds a user name or password", hint=hint)


def check_address(text: str, parts: SplitResult) -> None:
    """Raises RequestError where no request can be written for an address: its host is none, its path is not ASCII."""
    try:
        (parts.hostname or "").encode("idna")
    except UnicodeError as error:
        raise RequestError(
            f"cannot read URL {text!r}: its host is no name: {error}", hint="write an address such as http://HOST:PORT"
        ) from None
    if any(letter.isspace() or not letter.isprintable() for letter in text) or not parts.path.isascii():
        raise RequestError(
            f"cannot read URL {text!r}: it holds a blank, or a letter that a path has not",
            hint="write such letters as %20 in its path",
        )


def read_page(
    url: str, *, timeout_s: float = 5.0, api_key: str = "", body: Any = None, limit_bytes: int = MAX_PAGE_BYTES
) -> Reply:
    """GET ``url``, or POST ``body`` as JSON; raises HttpError, with ``timeout_s`` counting for the whole exchange."""
    deadline_s = time.monotonic() + timeout_s
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    try:
        with contextlib.closing(_connect(parts, timeout_s)) as connection:
            connection.settimeout(max(0.001, deadline_s - time.monotonic()))
            connection.sendall(_request(parts, api_key, body))
            return _receive(connection, deadline_s, limit_bytes, where)
    except TimeoutError:
        raise HttpError(f"{where} did not answer within {timeout_s:g} s") from None
    except ssl.SSLError as error:
        raise HttpError(f"no TLS connection to {where}: {error.reason or error}") from None
    except httptools.HttpParserError as error:
        raise HttpError(f"what answers at {where} does not speak HTTP: {error}") from None
    except OSError as error:
        raise HttpError(f"no connection to {where}: {error.strerror or error}") from None


def read_json(url: str, *, timeout_s: float = 5.0, api_key: str = "", body: Any = None) -> Any:
    """The JSON document at ``url``; raises HttpError unless the answer is 200 with JSON."""
    reply = read_page(url, timeout_s=timeout_s, api_key=api_key, body=body)
    if reply.status != 200:
        raise HttpError(f"{url} answered HTTP {reply.status}")
    try:
        return msgspec.json.decode(reply.body)
    except msgspec.DecodeError as error:
        raise HttpError(f"{url} is not JSON: {error}") from None


def find_json(*urls: str, timeout_s: float = 5.0, api_key: str = "") -> dict[str, Any]:
    """The first of these pages that is a JSON object; empty where none is."""
    for url in urls:
        with contextlib.suppress(HttpError):
            page = read_json(url, timeout_s=timeout_s, api_key=api_key)
            if isinstance(page, dict):
                return page
    return {}


def _connect(parts: SplitResult, timeout_s: float) -> socket.socket:
    assert parts.hostname is not None
    secure = parts.scheme == "https"
    plain = socket.create_connection((parts.hostname, parts.port or (443 if secure else 80)), timeout=timeout_s)
    if not secure:
        return plain
    try:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname)
    except BaseException:
        plain.close()
        raise


def _request(parts: SplitResult, api_key: str, body: Any) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"{'GET' if body is None else 'POST'} {target} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    data = b""
    if body is not None:
        data = msgspec.json.encode(body)
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace") + data


class _Page:
    """What httptools hands over."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.content_type = ""
        self.sized = False
        self.headers = False
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key == b"content-type":
            self.content_type = value.decode("latin-1")
        elif key in (b"content-length", b"transfer-encoding"):
            self.sized = True

    def on_headers_complete(self) -> None:
        self.headers = True

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)
        self.size += len(body)

    def on_message_complete(self) -> None:
        self.complete = True


def _receive(connection: socket.socket, deadline_s: float, limit_bytes: int, where: str) -> Reply:
    page = _Page()
    parser = httptools.HttpResponseParser(page)
    received = 0
    while not page.complete:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        data = connection.recv(1 << 16)
        if not data:
            break
        received += len(data)
        if received > limit_bytes + (1 << 16):
            raise HttpError(f"{where} sent more than {limit_bytes} bytes")
        parser.feed_data(data)
    # An answer without a length ends with the connection; one with a length must be whole.
    if not page.headers or (page.sized and not page.complete):
        raise HttpError(f"{where} closed the connection in the middle of its answer")
    return Reply(status=parser.get_status_code(), body=b"".join(page.chunks), content_type=page.content_type)
