"""A stored run that lost bytes: refused where it came to its end, read as far as it goes where it was killed."""

from pathlib import Path

import msgspec
import pytest

from powerband.cli import main
from powerband.cli.load_runs import stored_run
from powerband.load.trace_log import TraceLog
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.value import Missing
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.run_dir import read_run, write_run
from powerband.stores.sqlite import Journal

RUN = Run(
    run_id="r1",
    basis="measured",
    config=EngineConfig(engine="openai", model="m"),
    effective=Missing(missing="not asked"),
    workload=Workload(
        requests=tuple(RequestSpec(offset_ns=n, input_tokens=3, output_tokens=2) for n in range(300)),
        source="by hand",
    ),
    traces=(),
    end_ns=100_000,
)


def stored(tmp_path: Path) -> Path:
    """A run of 300 requests, its traces logged as they ended."""
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    log = TraceLog(folder / "traces.jsonl.gz")
    for n in range(300):
        log.add(
            RequestTrace(
                index=n,
                status="ok",
                input_tokens=3,
                output_tokens_asked=2,
                t_sched_ns=n,
                t_send_ns=n,
                t_end_ns=n + 97 * n % 1009 + 9,
                t_chunks_ns=(n + 1, n + 97 * n % 1009 + 9),
                chunk_tokens=(1, 1),
            )
        )
    log.close()
    write_run(folder, RUN, written=["traces"])
    return folder


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    middle = len(data) // 2
    kept = {"emptied": b"", "halved": data[:middle], "without its last byte": data[:-1]}
    path.write_bytes(kept.get(how, data[:middle] + bytes(40) + data[middle + 40 :]))


DAMAGE = ["emptied", "halved", "without its last byte", "overwritten"]


def test_a_whole_run_is_read(tmp_path: Path) -> None:
    stored(tmp_path)
    assert len(stored_run(tmp_path, "r1").columns) == 300


@pytest.mark.parametrize("how", DAMAGE)
def test_a_finished_run_whose_traces_lost_bytes_is_refused(tmp_path: Path, how: str) -> None:
    folder = stored(tmp_path)
    damage(folder / "traces.jsonl.gz", how)
    with pytest.raises(RequestError, match=r"damaged|no trace log"):
        stored_run(tmp_path, "r1")
    with pytest.raises(RequestError, match="damaged"):
        read_run(folder)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_finished_run_whose_workload_lost_bytes_is_refused(tmp_path: Path, how: str) -> None:
    folder = stored(tmp_path)
    damage(folder / "workload.jsonl.gz", how)
    with pytest.raises(RequestError, match="damaged"):
        read_run(folder)


def test_a_run_that_was_killed_stays_readable(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    (folder / "run.json").unlink()
    (folder / "begun.json").write_bytes(msgspec.json.encode(RUN))
    damage(folder / "traces.jsonl.gz", "halved")
    assert 0 < len(stored_run(tmp_path, "r1").columns) < 300


@pytest.mark.parametrize("by_folder", [True, False])
@pytest.mark.parametrize("others", [True, False])
def test_other_commands_say_that_a_killed_run_was_not_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by_folder: bool, others: bool
) -> None:
    Journal(tmp_path).close()
    folder = stored(tmp_path)
    (folder / "run.json").rename(folder / "begun.json")
    if others:
        write_run(tmp_path / "runs" / "r2", RUN)
    name = str(folder) if by_folder else "r1"
    for argv in (["locate", name], ["verify", name, name]):
        assert main([*argv, "--home", str(tmp_path)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "the run r1 was not finished" in err
        assert "powerband load --show" in err
