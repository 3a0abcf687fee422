"""What is sent to, what came back of it, and how it goes meanwhile."""

from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from powerband.probes.http import check_address, refuse_password
from powerband.records.columns import Columns
from powerband.records.errors import RequestError
from powerband.records.request import RequestTrace
from powerband.records.run import ClientCheck

Endpoint = Literal["completions", "chat", "tgi", "llamacpp"]
PATHS: dict[str, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "tgi": "/generate_stream",
    "llamacpp": "/completion",
}
StoppedBecause = Literal["done", "deadline", "interrupted", "too_many_errors", "saturated", "precise_enough"]


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how to talk to it; ``extra_body`` holds fields added to every request, such as ignore_eos.

    ``keep_alive`` reuses connections; off by default, because a reused connection that the server has just closed
    shows as an error which a new one does not have. ``timeout_s`` is per request (None: only the run's deadline).
    ``tokenizer`` is a tokenizer.json, or its folder, to make prompts of an exact length with. ``as_text`` sends text
    even where the endpoint takes token ids, so that the server has to tokenise.
    """

    url: str
    model: str = ""
    endpoint: Endpoint = "completions"
    api_key: str | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)
    keep_alive: bool = False
    timeout_s: float | None = None
    verify_tls: bool = True
    tokenizer: str | None = None
    as_text: bool = False

    def address(self) -> tuple[str, int, bool, str]:
        """Host, port, whether TLS, and the path before the endpoint's own; raises RequestError on a bad URL."""
        hint = "write http://HOST:PORT or https://HOST, with a path only where the API has one"
        refuse_password(self.url)
        try:
            parts = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
            port = parts.port
        except ValueError as error:
            raise RequestError(f"cannot read URL {self.url!r}: {error}", hint=hint) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"cannot read URL {self.url!r}", hint=hint)
        if parts.query or parts.fragment:  # never sent; it may hold a key, so it is not shown
            raise RequestError("the URL has a query or a fragment", hint="give a key with --api-key, or " + hint)
        check_address(self.url, parts)
        tls = parts.scheme == "https"
        return parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class Progress:
    """How a run goes, about once a second; ``ttft_s`` and ``tpot_s`` are medians of the requests that ended lately."""

    elapsed_s: float
    planned: int
    sent: int
    completed: int
    errors: int
    in_flight: int
    output_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    left_s: float | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """Traces in order of ``index``, when the run ended (ns after t0), the self-check, and what a reader must know.

    ``traces`` is empty where they went to a log; ``columns`` has what the figures need either way.
    """

    traces: tuple[RequestTrace, ...]
    end_ns: int
    client: ClientCheck
    columns: Columns
    notes: tuple[str, ...] = ()
    stopped_because: StoppedBecause = "done"
