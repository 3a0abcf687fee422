"""Hostile bytes: a stream or a trace file is read, or refused in words; nothing else happens.

``POWERBAND_FUZZ=20000`` sets how many inputs each of the two gets (default 1,500); a failure names the seed.
"""

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from powerband.load.exchange import Exchange
from powerband.load.sse import DECODERS
from powerband.load.traffic import build_workload
from powerband.records.errors import RequestError
from tests.support.scripted_server import END, HEAD, OPEN_HEAD, chunk, event, reply, token

COUNT = int(os.environ.get("POWERBAND_FUZZ", "1500"))
SEED = int(os.environ.get("POWERBAND_FUZZ_SEED", "20231116"))
CATEGORIES = {"reset", "short", "malformed", "stream_error"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 2}
TGI = {"index": 1, "token": {"id": 1, "text": "a"}, "generated_text": None, "details": None}
CHAT = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a", "tool_calls": [{"a": 1}]}}]}
DONE = b"data: [DONE]\n\n"

STREAMS = [
    HEAD + b"".join(map(chunk, (token(), token(), token("", "length", usage=USAGE), DONE))) + END,
    OPEN_HEAD + token() + token() + token("", "stop", usage=USAGE) + DONE,
    HEAD + b"".join(map(chunk, (event(CHAT), event(CHAT), event({"choices": [], "usage": USAGE}), DONE))) + END,
    HEAD + chunk(event(TGI)) + chunk(event(TGI | {"generated_text": "aa", "details": USAGE})) + END,
    HEAD + chunk(event({"content": "a", "stop": False})) + chunk(event({"content": "", "stop": True})) + END,
    HEAD + chunk(token()) + chunk(event({"error": {"message": "no"}})) + END,
    reply(503, b'{"error": {"message": "loading"}}'),
    reply(200, b'{"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}'),
]
FILES = [
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2024-05-10 00:00:00.009+00:00,9,5\n",
    b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b'5,s1,2.5,ChatGPT,472,18,490,"Conversation log"\n45.5,s2,9.1,GPT-4,1087,230,1317,API log\n',
    b'{"timestamp": 0, "input_length": 1030, "output_length": 6, "hash_ids": [0, 1, 2]}\n'
    b'{"timestamp": 30, "input_length": 600, "output_length": 4, "hash_ids": [0, 7]}\n',
    b'{"offset_ns": 5, "input_tokens": 9, "output_tokens": 3, "prefix_id": 1, "prefix_tokens": 4, "session": 1}\n',
    json.dumps([{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}] * 2).encode(),
    b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}\n',
]
ODD = [
    b"\x00",
    b"\xff",
    b"\r\n",
    b"\n\n",
    b"{",
    b"}",
    b"[" * 3000,
    b'"',
    b"-",
    b"1e999",
    b"nan",
    b"\xef\xbb\xbf",
    b",",
    b"9" * 40,
]
ODD += [
    b"data:",
    b"null",
    b"\\ud800",
    b"HTTP/1.1",
    b"0\r\n\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Content-Length: -5\r\n",
]


def mutated(data: bytes, dice: random.Random) -> bytes:
    """A few cuts, doublings, flips and insertions."""
    made = bytearray(data)
    for _ in range(dice.randint(0, 5)):
        at = dice.randrange(len(made) + 1)
        match dice.randrange(6):
            case 0:
                del made[at : at + dice.randint(1, 40)]
            case 1:
                made[at:at] = dice.choice(ODD)
            case 2:
                made[at:at] = made[at : at + dice.randint(1, 80)]
            case 3 if at < len(made):
                made[at] ^= 1 << dice.randrange(8)
            case 4:
                del made[at:]
            case _:
                made[at:at] = dice.randbytes(dice.randint(1, 8))
    return bytes(made)


def pieces(data: bytes, dice: random.Random) -> list[bytes]:
    places = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randint(0, 12)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def read_stream(data: bytes, dice: random.Random) -> str:
    decode = DECODERS[dice.choice(list(DECODERS))]
    exchange = Exchange(b"", decode, lambda over: None)
    at = 0
    for at, piece in enumerate(pieces(data, dice)):
        if exchange.ended:
            break
        exchange.received(at, piece)
    if not exchange.ended:
        exchange.lost(at + 1, None if dice.random() < 0.7 else ConnectionResetError())
    assert exchange.ended
    times, counts, _ = exchange.answer.settle()
    assert len(times) == len(counts)
    assert list(times) == sorted(times)
    assert all(count > 0 for count in counts)
    if exchange.error is not None:
        category = exchange.error.partition(":")[0]
        assert category in CATEGORIES or category.startswith("http_"), exchange.error
        assert len(exchange.error) < 400
    assert exchange.t_end_ns is not None
    return (exchange.error or "ok").partition(":")[0]


@pytest.mark.timeout(600)
def test_no_stream_brings_the_client_down() -> None:
    ends: Counter[str] = Counter()
    for number in range(COUNT):
        dice = random.Random(SEED + number)
        data = mutated(dice.choice(STREAMS), dice)
        try:
            ends[read_stream(data, dice)] += 1
        except Exception as error:
            raise AssertionError(f"POWERBAND_FUZZ_SEED={SEED + number}: {data!r}") from error
    assert all(ends[name] > COUNT / 200 for name in ("ok", *CATEGORIES)), ends  # every way to end is met


@pytest.mark.timeout(600)
def test_no_trace_file_brings_the_reader_down(tmp_path: Path) -> None:
    refused = 0
    path = tmp_path / "trace"
    for number in range(COUNT):
        dice = random.Random(SEED + number)
        data = mutated(dice.choice(FILES), dice)
        path.write_bytes(data)
        try:
            workload = build_workload(str(path), scale_lengths=dice.choice([None, 0.5]))
            assert all(r.input_tokens > 0 and r.output_tokens > 0 and r.offset_ns >= 0 for r in workload.requests)
        except RequestError as error:
            refused += 1
            if not error.hint or len(error.message) > 1000:
                raise AssertionError(
                    f"POWERBAND_FUZZ_SEED={SEED + number}: no hint, or {error.message[:300]!r}"
                ) from error
        except Exception as error:
            raise AssertionError(f"POWERBAND_FUZZ_SEED={SEED + number}: {data!r}") from error
    assert 0.1 < refused / COUNT < 0.95  # both ends are exercised
