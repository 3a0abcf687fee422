"""One answer, however its bytes come: every cut of them gives the same end, and the same tokens."""

import pytest

from powerband.load.exchange import Exchange
from powerband.load.sse import DECODERS
from tests.support.scripted_server import END, HEAD, OPEN_HEAD, chunk, event, reply, token

USAGE = {"prompt_tokens": 9, "completion_tokens": 3}
DONE = b"data: [DONE]\n\n"
STREAM = b"text/event-stream"
THREE = (token(), token(), token("b", "length", usage=USAGE))
TGI = {"index": 1, "token": {"id": 1, "text": "a"}, "generated_text": None, "details": None}
THREE_TGI = (event(TGI), event(TGI), event(TGI | {"generated_text": "aaa", "details": {"generated_tokens": 3}}))
ODD_TEXTS = (token("[DONE]"), token('"error"'), token("0\r\n\r\n", "length", usage=USAGE))
ODD_HEAD = b"HTTP/1.1 200 OK\r\nCONTENT-TYPE: Text/Event-Stream\r\nTransfer-Encoding: Chunked\r\nX-Last: 1\r\n\r\n"
JSON = b'{"choices": [{"text": "a b c", "finish_reason": "length"}], "usage": {"completion_tokens": 3}}'
OVERLOAD = b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<h1>503</h1>"


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def chunked(events: tuple[bytes, ...], end: bytes = END, head: bytes = HEAD) -> bytes:
    return head + b"".join(map(chunk, events)) + end


def pieces(data: bytes) -> list[list[bytes]]:
    """The bytes in one piece, in two at every place, and in pieces of one size."""
    in_two = [[data[:place], data[place:]] for place in range(1, len(data))]
    return [[data], *in_two, *([data[a : a + n] for a in range(0, len(data), n)] for n in (1, 2, 3, 5, 11))]


def taken_in(parts: list[bytes], endpoint: str, *, late: bool) -> Exchange:
    """As a connection does that stays open; ``late``: parsing waits until all has come."""
    exchange = Exchange(b"", DECODERS[endpoint], lambda over: None)
    for t_ns, part in enumerate(parts):
        if exchange.ended:
            break
        exchange.received(t_ns, part)
        if exchange.ripe and (not late or t_ns == len(parts) - 1):
            exchange.parse()
    return exchange


WHOLE = {
    "chunked": chunked((*THREE, DONE)),
    "no [DONE]": chunked(THREE),
    "lines end in CRLF": chunked(tuple(map(crlf, THREE))),
    "a head of odd case": chunked((*THREE, DONE), head=ODD_HEAD),
    "a trailer": chunked(THREE, b"0\r\nContent-Type: text/plain\r\n\r\n"),
    "a chunk extension": chunked(THREE, b"0;last=1\r\n\r\n"),
    "a last chunk of many noughts": chunked(THREE, b"000\r\n\r\n"),
    "a stream of a stated length": reply(200, b"".join(THREE), STREAM),
    "100 Continue first": b"HTTP/1.1 100 Continue\r\n\r\n" + chunked((*THREE, DONE)),
    "texts that look like an end": chunked((*ODD_TEXTS, DONE)),
    "no stream": reply(200, JSON),
    "no stream, and a header that names one": reply(200, JSON, b"application/json\r\nVary: text/event-stream"),
    "tgi": chunked(THREE_TGI),
    "tgi of a stated length": reply(200, b"".join(THREE_TGI), STREAM),
}  # fmt: skip


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_any_cut_of_an_answer_ends_it_whole_while_the_connection_stays_open(name: str, late: bool) -> None:
    for parts in pieces(WHOLE[name]):
        exchange = taken_in(parts, "tgi" if name.startswith("tgi") else "completions", late=late)
        assert (exchange.ended, exchange.error) == (True, None), parts
        assert sum(exchange.answer.settle()[1]) == 3
        assert exchange.t_end_ns == len(parts) - 1
        assert exchange.reusable


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (reply(503, b"data: loading\n\n", STREAM), "http_503: data: loading"),
        (reply(406, b"ask for text/event-stream", b"text/plain"), "http_406: ask for text/event-stream"),
        (chunked((token(), event({"error": {"message": "no"}}))), "stream_error: no"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", "http_101: "),
    ],
)
def test_any_cut_of_a_refusal_is_that_refusal(data: bytes, error: str) -> None:
    for parts in pieces(data):
        exchange = taken_in(parts, "completions", late=False)
        assert (exchange.ended, exchange.error) == (True, error), parts


@pytest.mark.parametrize("more", [b"\r\n", b"HTTP/1.1 408 X\r\nContent-Length: 1\r\n\r\ny", b"hello"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_what_follows_an_answer_does_not_spoil_it(more: bytes, close: bytes) -> None:
    data = reply(200, JSON).replace(b"\r\n\r\n", b"\r\n" + close + b"\r\n", 1) + more
    exchange = taken_in([data], "completions", late=False)
    assert (exchange.ended, exchange.error, exchange.status) == (True, None, 200)
    assert sum(exchange.answer.settle()[1]) == 3


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (OVERLOAD, "http_503: <h1>503</h1>"),
        (reply(503, b"<h1>503</h1>", b"text/html")[:-4], "http_503: <h1>503<"),
        (b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + JSON, None),
        (OPEN_HEAD + b"".join((*THREE, DONE)), None),
        (reply(200, JSON)[:-4], "reset: closed by the server after 0 chunks"),
        (b"HTTP/1.1 200 OK\r\n", "reset: closed by the server before any answer"),
    ],
)
def test_an_answer_without_an_end_of_its_own_ends_with_the_connection(data: bytes, error: str | None) -> None:
    for parts in pieces(data):
        exchange = taken_in(parts, "completions", late=False)
        exchange.lost(len(parts), None)
        assert (exchange.ended, exchange.error) == (True, error), parts


@pytest.mark.parametrize("end", ["lost", "timeout", "over"])
def test_an_answer_whose_done_has_come_is_whole_whatever_ends_the_connection(end: str) -> None:
    for parts in pieces(chunked((*THREE, DONE), b"")):
        exchange = taken_in(parts, "completions", late=False)
        if end == "lost":
            exchange.lost(len(parts), ConnectionResetError())
        elif end == "timeout":
            exchange.time_out(1.0)
        else:
            exchange.parse_all()
        assert (exchange.ended, exchange.error) == (True, None), parts
