"""Event streams: any cut of the bytes gives the same events, and each dialect's events say what they say."""

import json
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.load.sse import Event, SseReader, decode_llamacpp, decode_openai, decode_tgi

STREAM = (
    b': a comment\n\ndata: {"a":1}\n\nevent: x\ndata: {"b":\ndata: 2}\n\ndata:{"c":3}\n\n\n\nid: 7\n\ndata: [DONE]\n\n'
)
USAGE = {"prompt_tokens": 9, "completion_tokens": 4}
WHOLE = {"role": "assistant", "content": "all"}
PAYLOADS = [b'{"a":1}', b'{"b":\n2}', b'{"c":3}', b"[DONE]"]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(marks)]


@given(places=st.lists(st.integers(0, 500), max_size=30), end=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_cut_gives_the_same_events(places: list[int], end: bytes) -> None:
    pieces = cut(STREAM.replace(b"\n", end), places)
    singly, at_once = SseReader(), SseReader()
    one_by_one = [payload for n, piece in enumerate(pieces) for payload in singly.feed([piece], [n])[0]]
    assert one_by_one + singly.rest() == PAYLOADS
    assert at_once.feed(pieces, range(len(pieces)))[0] + at_once.rest() == PAYLOADS


@given(places=st.lists(st.integers(0, 500), max_size=30), end=st.sampled_from([b"\n", b"\r\n"]))
def test_an_event_is_stamped_when_its_last_byte_came(places: list[int], end: bytes) -> None:
    data = STREAM.replace(b"\n", end)
    pieces = cut(data, places)
    payloads, times = SseReader().feed(pieces, range(len(pieces)))
    assert payloads == PAYLOADS
    for payload, time in zip(payloads, times, strict=True):
        last = data.index(payload.replace(b"\n", end + b"data: ")) + len(payload.replace(b"\n", end + b"data: "))
        last += 2 * len(end)  # the blank line that closes the event
        reached = 0
        for n, piece in enumerate(pieces):
            reached += len(piece)
            if reached >= last:
                assert time == n
                break


def test_an_event_without_a_closing_blank_line_is_the_rest() -> None:
    reader = SseReader()
    assert reader.feed([b"data: {}"], [0]) == ([], [])
    assert reader.rest() == [b"{}"]
    assert reader.rest() == []


def one(decode: Callable[[list[bytes]], list[Event]], document: object) -> Event:
    return decode([json.dumps(document).encode()])[0]


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"choices": [{"text": "abc", "finish_reason": None}]}, Event(text_chars=3)),
        ({"choices": [{"text": "", "finish_reason": None}]}, Event(text_chars=0)),
        ({"choices": [{"text": "ab", "token_ids": [5, 6], "finish_reason": None}]}, Event(text_chars=2, tokens=2)),
        (
            {"choices": [{"text": "", "finish_reason": "length"}], "usage": USAGE},
            Event(text_chars=0, finish="length", total_tokens=4, prompt_tokens=9),
        ),
        ({"choices": [], "usage": USAGE}, Event(total_tokens=4, prompt_tokens=9)),
        (delta(role="assistant", content=""), Event()),
        (delta(role="assistant", content=None), Event()),
        (delta(content="hello"), Event(text_chars=5)),
        (delta(reasoning_content="hm", content=None), Event(text_chars=2)),
        (delta(reasoning="hmm"), Event(text_chars=3)),
        (delta(tool_calls=[{"index": 0}]), Event(text_chars=len('[{"index": 0}]'))),
        (delta(tool_calls=[], content="a"), Event(text_chars=1)),
        ({"choices": [{"message": WHOLE, "finish_reason": "stop"}]}, Event(text_chars=3, finish="stop")),
        ({"error": {"message": "no memory"}}, Event(error="no memory")),
        ({"error": None, "choices": [{"text": "a"}]}, Event(text_chars=1)),
    ],
)  # fmt: skip
def test_openai_events(document: object, expected: Event) -> None:
    assert one(decode_openai, document) == expected


def test_tgi_events() -> None:
    token = {"index": 1, "token": {"id": 3, "text": " a", "special": False}, "generated_text": None, "details": None}
    assert one(decode_tgi, token) == Event(text_chars=2, tokens=1)
    last = token | {"generated_text": "x a", "details": {"finish_reason": "length", "generated_tokens": 2}}
    assert one(decode_tgi, last) == Event(text_chars=2, tokens=1, finish="length", total_tokens=2)
    assert one(decode_tgi, {"error": "Request failed", "error_type": "generation"}).error == "Request failed"


def test_llamacpp_events() -> None:
    assert one(decode_llamacpp, {"content": " a", "tokens": [5], "stop": False}) == Event(text_chars=2)
    last = {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 7, "tokens_evaluated": 20}
    assert one(decode_llamacpp, last) == Event(finish="limit", total_tokens=7, prompt_tokens=20)


@pytest.mark.parametrize("decode", [decode_openai, decode_tgi, decode_llamacpp])
@pytest.mark.parametrize(
    "data", [b'{"choices":', b"5", b'"x"', b"[1]", b"{} {}", b"{},{}", b'{"choices": "a", "token": 3, "stop": 7}']
)
def test_what_is_no_event_is_an_error(decode: Callable[[list[bytes]], list[Event]], data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode([data])
