"""The trace log: what was flushed can be read, however the file ends."""

import gzip
import time
from pathlib import Path

import msgspec
import pytest

from powerband.load.trace_log import TraceLog, join_logs, part_log, read_traces
from powerband.records.errors import MachineError, RequestError
from powerband.records.request import RequestTrace

TRACES = [
    RequestTrace(
        index=n,
        status="ok",
        input_tokens=n,
        output_tokens_asked=2,
        t_sched_ns=n,
        t_chunks_ns=(n + 1, n + 2),
        chunk_tokens=(1, 1),
    )
    for n in range(500)
]


def written(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl.gz"
    log = TraceLog(path)
    for trace in TRACES:
        log.add(trace)
    log.close()
    return path


def test_a_closed_log_is_plain_gzip_of_json_lines(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert list(read_traces(path)) == TRACES
    with gzip.open(path, "rb") as file:
        assert [msgspec.json.decode(line, type=RequestTrace) for line in file] == TRACES


@pytest.mark.parametrize("left", [0, 1, 9, 10, 200, 1000, 2500])
def test_a_cut_log_gives_what_was_whole(tmp_path: Path, left: int) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: min(left, len(data) - 1)])
    found = list(read_traces(path))
    assert found == TRACES[: len(found)]
    assert len(found) < 500 or left >= len(data) - 20


@pytest.mark.parametrize("parts", [1, 3])
def test_the_logs_of_several_processes_are_one(tmp_path: Path, parts: int) -> None:
    whole = tmp_path / "t.jsonl.gz"
    for share in range(parts):
        log = TraceLog(part_log(whole, share))
        for trace in TRACES[share::parts]:
            log.add(trace)
        log.close()
    join_logs([part_log(whole, share) for share in range(parts)], whole)
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl.gz"]
    assert list(read_traces(whole)) == [trace for share in range(parts) for trace in TRACES[share::parts]]
    with gzip.open(whole, "rb") as file:
        assert sum(1 for _ in file) == 500


def test_what_is_there_is_on_disk_within_a_second(tmp_path: Path) -> None:
    """One trace at a time, less often than the log is flushed: none waits for others to come."""
    log = TraceLog(tmp_path / "t.jsonl.gz")
    log.add(TRACES[0])
    deadline = time.monotonic() + 5.0
    while not list(read_traces(tmp_path / "t.jsonl.gz")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(read_traces(tmp_path / "t.jsonl.gz")) == TRACES[:1]
    log.close()


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(b"hello")
    with pytest.raises(RequestError, match="is no trace log"):
        list(read_traces(path))
    path.write_bytes(gzip.compress(b"[1, 2]\n"))
    with pytest.raises(RequestError, match="is no trace log"):
        list(read_traces(path))
    with pytest.raises(RequestError, match="cannot read"):
        list(read_traces(tmp_path / "none.gz"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's disk without room")
def test_a_full_disk_is_a_machine_error() -> None:
    log = TraceLog(Path("/dev/full"))
    log.add(TRACES[0])
    with pytest.raises(MachineError, match="No space left"):
        log.close()


def test_a_place_that_cannot_be_written_is_a_machine_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot write"):
        TraceLog(tmp_path / "file" / "t.gz")
