"""Traces made by hand: times, launches, devices; and files that are damaged, hostile or no trace at all."""

import gzip
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from powerband.locate.timeline import diagnose_timeline
from powerband.probes import trace_events
from powerband.probes.kineto import read_kineto
from powerband.probes.timeline_build import match_launches
from powerband.probes.trace_columns import Index, correlations
from powerband.probes.trace_events import read_events
from powerband.records.errors import RequestError
from powerband.records.timeline import COMMUNICATION, COPY, KERNEL


def kernel(
    ts: float, dur: float, correlation: int, name: str = "gemm", cat: str = "kernel", **more: Any
) -> dict[str, Any]:
    args = {"correlation": correlation, "stream": 7, "device": 0}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args, **more}


def launch(ts: float, dur: float, correlation: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def write(folder: Path, events: list[Any], **top: Any) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events, "traceName": "t"}))
    return path


SMALL = [
    launch(0, 5, 1),
    kernel(10, 20, 1),
    launch(40, 5, 2),
    kernel(50, 10, 2, "ncclDevKernel_AllReduce"),
    kernel(70, 5, 3, "copy", "gpu_memcpy"),
]


def test_work_and_launches_are_read_in_ns_from_the_first_work(tmp_path: Path) -> None:
    timeline = read_kineto(write(tmp_path, SMALL))
    assert timeline.work_start_ns.tolist() == [0, 40_000, 60_000]
    assert timeline.work_end_ns.tolist() == [20_000, 50_000, 65_000]
    assert timeline.work_kind.tolist() == [KERNEL, COMMUNICATION, COPY]
    assert timeline.work_launch.tolist() == [0, 1, -1]
    assert timeline.calls.start_ns.tolist() == [-10_000, 30_000]
    assert any("33 % of the device work has no launch" in note for note in timeline.notes)


def test_a_bare_list_gzip_and_other_key_orders_read_alike(tmp_path: Path) -> None:
    expected = read_kineto(write(tmp_path, SMALL)).work_start_ns.tolist()
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(SMALL, indent=2))
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(json.dumps({"traceEvents": SMALL, "otherData": [{"a": 1}, {"b": 2}]}).encode()))
    for path in (bare, packed):
        assert read_kineto(path).work_start_ns.tolist() == expected


def test_blocks_smaller_than_an_event_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tricky = [
        kernel(k * 10, 5, k, name='},{"ph":"X"} \\" [', args={"correlation": k, "list": [{"a": [{}]}, {"b": 2}, "},{"]})
        for k in range(40)
    ]
    path = write(tmp_path, tricky, deviceProperties=[{"id": 0}, {"id": 1}])
    whole = [event.ts for events in read_events(path) for event in events]
    assert whole == [k * 10 for k in range(40)]
    for size in (17, 64, 301, 1000):
        monkeypatch.setattr(trace_events, "_BLOCK_BYTES", size)
        assert [event.ts for events in read_events(path) for event in events] == whole


def test_the_busiest_device_is_taken_and_the_others_are_mentioned(tmp_path: Path) -> None:
    other = kernel(0, 1000, 9, args={"correlation": 9, "stream": 1, "device": 3})
    timeline = read_kineto(write(tmp_path, [*SMALL, other]))
    assert timeline.device == "3"
    assert any("2 devices" in note for note in timeline.notes)


def test_events_that_are_no_time_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    odd = [
        kernel(80, -5, 4),
        kernel(1e300, 1, 5),
        {**kernel(0, 1, 6), "ts": "soon"},
        {**kernel(0, 1, 7), "ts": None},
        7,
        None,
        [],
    ]
    path.write_text(
        json.dumps({"traceEvents": [*SMALL, *odd]}).replace(
            '"dur": 5, "args": {"correlation": 3', '"dur": NaN, "args": {"correlation": 3'
        )
    )
    timeline = read_kineto(path)
    assert timeline.work_start_ns.size == 2
    assert sum("left out" in note for note in timeline.notes) == 3


def test_two_clocks_are_noticed_and_launches_not_used(tmp_path: Path) -> None:
    events = [*(launch(1e9 + k * 10, 5, k) for k in range(20)), *(kernel(k * 10, 5, k) for k in range(20))]
    timeline = read_kineto(write(tmp_path, events))
    assert set(timeline.work_launch.tolist()) == {-1}
    assert any("two clocks" in note for note in timeline.notes)
    assert diagnose_timeline(timeline).verdict == "undecided"


def test_ids_and_names_of_any_kind_become_numbers() -> None:
    assert correlations([3, 0, (1 << 62) - 1]).tolist() == [3, 0, (1 << 62) - 1]
    assert correlations([-4, 1 << 62]).tolist() == [-1, -1]
    assert correlations([7, None, "7", 2.0, 1 << 80, -(1 << 80), []]).tolist() == [7, -1, -1, -1, -1, -1, -1]
    index = Index()
    assert index.of_all(["a", "b", "a"]).tolist() == [0, 1, 0]
    assert index.of_all(["b", ["a list"], "c", ["a list"]]).tolist() == [1, 2, 3, 2]
    assert index.of_all([1, 1, 2], ["x", "y", "x"]).tolist() == [4, 5, 6]
    assert index.of_all([2, 1], ["x", "x"]).tolist() == [6, 4]
    assert index.of_all([]).tolist() == []


def test_a_trace_of_one_block_is_read_as_fast_as_a_long_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last event go through the fast decoder, with keys after the list or without."""
    slow: list[dict[str, Any]] = []
    read = trace_events._event_of

    def count(row: dict[str, Any]) -> trace_events.Event:
        slow.append(row)
        return read(row)

    monkeypatch.setattr(trace_events, "_event_of", count)
    for after in ({}, {"otherData": [{"a": 1}, {"b": [{}, {}]}]}):
        path = tmp_path / "one.json"
        path.write_text(json.dumps({"traceEvents": SMALL * 100, **after}))
        slow.clear()
        assert sum(map(len, read_events(path))) == 500
        assert len(slow) == 1


def test_launches_match_by_correlation_and_the_last_wins() -> None:
    import numpy as np

    work, calls = np.array([5, 7, -1, 9, 5]), np.array([9, 5, 5, -1])
    assert match_launches(work, calls).tolist() == [2, -1, -1, 0, 2]
    assert match_launches(work, np.zeros(0, dtype=np.int64)).tolist() == [-1] * 5


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"   \n", "is empty"),
        (b"hello", "is not JSON"),
        (b"{}", "holds no traceEvents"),
        (b'{"traceEvents": 7' + b" " * 100 + b"}", "not a list"),
        (b'{"traceEvents": []}', "no GPU events"),
        (b'{"traceEvents": [{"ph": "X"', "cut off or damaged after 0 whole events"),
        (b'{"traceEvents": [{"ph": "X"}, {"ph": "X"} {"ph": "X"}]}', "damaged"),
        (gzip.compress(json.dumps({"traceEvents": SMALL * 50}).encode())[:-60], "cut off or damaged"),
        (b"\x1f\x8bnot gzip at all", "cut off or damaged"),
        (b"[" * 100_000, "damaged"),
        (b'{"traceEvents": [' + b'{"a":' * 5000, "damaged"),
        (b'{"traceEvents": [{"ph": "X", "args": ' + b"[" * 5000 + b"]" * 5000 + b'}, {"ph": "X"}]}', "damaged"),
        (b"\xff\xfe\x00\x01", "is not JSON"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line_with_a_hint(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=says) as caught:
        read_kineto(path)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(RequestError, match="cannot read"):
            read_kineto(path)


def test_memory_stays_bounded_while_a_long_trace_passes(tmp_path: Path) -> None:
    """120,000 events of 300 bytes: 36 MB of text must not be in memory at once."""
    frame = {
        "ph": "X",
        "cat": "python_function",
        "name": "torch/nn/modules/module.py(1): forward" + "x" * 150,
        "pid": 1,
        "tid": 1,
    }
    lines = ",\n".join(json.dumps({**frame, "ts": k, "dur": 1, "args": {"Python id": k}}) for k in range(120_000))
    path = tmp_path / "long.json"
    path.write_text('{"traceEvents": [\n' + json.dumps(kernel(0, 5, 1)) + ",\n" + lines + "\n]}")
    tracemalloc.start()
    try:
        read_kineto(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 30e6
    assert peak < 100e6  # a block of 4 MB, its events, and what is kept of them; independent of the length


def test_mutated_traces_never_give_anything_but_an_answer_or_one_line(tmp_path: Path) -> None:
    seed = json.dumps({"schemaVersion": 1, "traceEvents": SMALL * 3, "x": [{"y": None}]}).encode()
    dice = random.Random(11)
    path = tmp_path / "fuzz.json"
    outcomes = {"answer": 0, "refused": 0, "many lines": 0}
    for _ in range(1500):
        path.write_bytes(mutate(seed, dice))
        try:
            found = diagnose_timeline(read_kineto(path))
        except RequestError as error:
            outcomes["refused" if "\n" not in error.message else "many lines"] += 1
        else:
            outcomes["answer"] += 1
            assert sum(part.seconds for part in found.breakdown) == pytest.approx(found.window_s, rel=1e-6, abs=1e-6)
    assert outcomes.pop("many lines") == 0
    assert min(outcomes.values()) > 50, outcomes


_ODD: tuple[Any, ...] = (
    None,
    -1,
    0,
    1e308,
    -1e308,
    2**63,
    2**80,
    "x" * 300,
    "7",
    True,
    [],
    {},
    [{"a": 1}],
    {"stream": []},
)


def odd_event(dice: random.Random) -> dict[str, Any]:
    """An event of the right form in which some values are of the wrong kind."""
    event: dict[str, Any] = json.loads(json.dumps(dice.choice(SMALL)))
    for _ in range(dice.randint(1, 3)):
        place = event if dice.random() < 0.6 or not isinstance(event.get("args"), dict) else event["args"]
        place[dice.choice(list(place) or ["ts"])] = json.loads(json.dumps(dice.choice(_ODD)))
    return event


def test_values_of_the_wrong_kind_are_left_out_or_refused(tmp_path: Path) -> None:
    dice = random.Random(5)
    path = tmp_path / "odd.json"
    answers = 0
    for _ in range(1500):
        events = [odd_event(dice) if dice.random() < 0.4 else dice.choice(SMALL) for _ in range(8)]
        path.write_text(json.dumps({"traceEvents": events}))
        try:
            found = diagnose_timeline(read_kineto(path))
        except RequestError:
            continue
        answers += 1
        assert sum(part.seconds for part in found.breakdown) == pytest.approx(found.window_s, rel=1e-6, abs=1e-6)
    assert answers > 1000


_PIECES = (
    b"NaN",
    b"-1",
    b"1e999",
    b"null",
    b"[]",
    b"{}",
    b'"',
    b"\\",
    b"},{",
    b"]",
    b"\xff",
    b"99999999999999999999",
    b"true",
)


def mutate(seed: bytes, dice: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(dice.randint(1, 4)):
        place, length = dice.randrange(len(data)), dice.randint(0, 12)
        choice = dice.random()
        if choice < 0.3:
            data[place : place + length] = dice.choice(_PIECES)
        elif choice < 0.5:
            del data[place : place + length]
        elif choice < 0.7:
            data[place] = dice.randrange(256)
        elif choice < 0.9:
            digits = [k for k in range(len(data)) if data[k : k + 1].isdigit()]
            data[dice.choice(digits or [place])] = dice.choice(b"0123456789-.e")
        else:
            del data[place:]
        if not data:
            data = bytearray(b"[")
    return bytes(data)
