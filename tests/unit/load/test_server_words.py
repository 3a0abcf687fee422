"""Text prompts of an exact count by what the server's own /tokenize shows, in the three ways that servers show it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from powerband.load.prompts import Prompts
from powerband.load.target import Target
from powerband.load.tokens import TokenSource, find_tokens
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
def server(dialect: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                answer = shown(dialect, body)
            else:
                text = body["messages"][0]["content"]
                answer = {"usage": {"prompt_tokens": len(pieces(text)) + TEMPLATE_TOKENS}}
            page = json.dumps(answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
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
