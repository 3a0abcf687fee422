"""Text prompts of an exact count by what the server's own /tokenize shows, in the three ways that servers show it."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from powerband.load.prompts import Prompts
from powerband.load.target import Target
from powerband.load.tokens import TokenSource, find_tokens, tokenize
from powerband.records.workload import RequestSpec, Workload

TEMPLATE_TOKENS = 7


def pieces(text: str) -> list[str]:
    """The tokenizer of these tests: a word of an odd length is two tokens, the first of one letter."""
    made = []
    for number, word in enumerate(text.split(" ")):
        space = " " if number else ""
        made += [space + word] if len(word) % 2 == 0 else [space + word[:1], word[1:]]
    return [piece for piece in made if piece]


def shown(dialect: str, body: dict[str, Any]) -> Any:
    if dialect == "llamacpp" and body.get("with_pieces"):
        return {"tokens": [{"id": n, "piece": piece} for n, piece in enumerate(pieces(body["content"]))]}
    if dialect == "vllm" and body.get("return_token_strs"):
        found = [piece.replace(" ", "Ġ") for piece in pieces(body["prompt"])]
        return {"count": len(found), "tokens": list(range(len(found))), "token_strs": found}
    if dialect == "tgi" and "inputs" in body:
        return [{"id": n, "text": piece} for n, piece in enumerate(pieces(body["inputs"]))]
    return None


@contextmanager
def server(dialect: str, tokens: Any = None, usages: Sequence[Any] = ()) -> Iterator[str]:
    """``tokens``: ids, or the whole page, that /tokenize says; ``usages``: what the usage of each answer says."""
    said = iter(usages)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                answer = shown(dialect, body) if tokens is None else {"tokens": tokens}
            elif dialect == "nonsense":
                answer = {"usage": {"prompt_tokens": next(said, None)}}
            else:
                text = body["messages"][0]["content"]
                answer = {"usage": {"prompt_tokens": len(pieces(text)) + TEMPLATE_TOKENS}}
            is_page = self.path == "/tokenize" and isinstance(tokens, bytes)
            page = tokens if is_page else json.dumps(answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def counts(source: TokenSource, asked: list[int]) -> list[int]:
    """Tokens of each prompt by the server, its template included."""
    requests = tuple(RequestSpec(offset_ns=0, input_tokens=count, output_tokens=1) for count in asked)
    made = Prompts(
        source.pool, Workload(requests=requests, source="test"), 5, source.extra_tokens, source.tokens_per_unit
    )
    return [len(pieces(made.of(index).decode())) + TEMPLATE_TOKENS for index in range(len(asked))]


@pytest.mark.parametrize("dialect", ["llamacpp", "vllm", "tgi"])
def test_text_is_made_of_words_that_the_server_shows_as_one_token(dialect: str) -> None:
    asked = [8, 20, 333, 1000]
    with server(dialect) as url:
        source = find_tokens(Target(url, "m", endpoint="chat"), seed=1)
    assert counts(source, asked) == asked
    assert "one token each" in source.note
    assert source.extra_tokens == TEMPLATE_TOKENS


def test_a_server_that_shows_nothing_has_its_words_calibrated() -> None:
    with server("silent") as url:
        source = find_tokens(Target(url, "m", endpoint="chat"), seed=1)
    assert "calibrated" in source.note
    assert source.tokens_per_unit > 1.2  # odd lengths are common


@pytest.mark.parametrize("tokens", [[-1, 5], [1 << 40, 5], [True, False], [float("nan"), 1.5], ["1", "2"], [None, 3]])
def test_ids_that_are_none_are_not_sent(tokens: list[Any]) -> None:
    with server("nonsense", tokens) as url:
        source = find_tokens(Target(url, "m"), seed=1)
    assert not source.as_ids


@pytest.mark.parametrize("page", [b"[" * 100_000, b"\xff", b'{"tokens": {"a": 1}}', b'{"tokens": []}', b"7"])
def test_a_page_that_is_none_is_no_tokenizer(page: bytes) -> None:
    with server("nonsense", page) as url:
        assert tokenize(Target(url, "m"), "a b") is None


@pytest.mark.parametrize("said", [[-3, 5], [1, 10**400], [True, 9], [1.5, 9.5], ["9", "8"], [9, 9]])
def test_a_usage_that_is_none_leaves_one_token_a_word(said: list[Any]) -> None:
    with server("nonsense", [], said) as url:
        source = find_tokens(Target(url, "m", endpoint="chat"), seed=1)
    assert (source.tokens_per_unit, source.extra_tokens) == (1.0, 0)
    assert "assumed" in source.note
