"""One folder of raw evidence a run: run.json, and the long lists beside it as gzipped JSON lines.

A folder is written under a temporary name and renamed when whole, so that a folder that is there can be read.
"""

import gzip
import secrets
import zlib
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from powerband.records.errors import RequestError, unknown_name
from powerband.records.request import RequestTrace
from powerband.records.run import Run
from powerband.records.sample import DeviceSample, EngineSample, HostSample
from powerband.records.workload import RequestSpec
from powerband.stores.files import sync

_Row = TypeVar("_Row")
_LISTS: dict[str, Any] = {"traces": RequestTrace, "engine_samples": EngineSample, "host_samples": HostSample}
BEGUN = "begun.json"  # of a load under way, or one that was killed
# Written only where a device was watched: runs of before cards were read have no such file.
_DEVICES = "device_samples.jsonl.gz"


def write_run(folder: Path, run: Run, *, written: Collection[str] = ()) -> None:
    """Store ``run`` in ``folder``, beside what the engine already wrote there (its log).

    ``written`` names lists of the run that are in the folder already, such as ``traces`` logged as they ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _LISTS.keys() - set(written):
        _write_lines(folder / f"{name}.jsonl.gz", getattr(run, name))
    _write_lines(folder / "workload.jsonl.gz", run.workload.requests)
    if run.device_samples:
        _write_lines(folder / _DEVICES, run.device_samples)
    short = msgspec.structs.replace(
        run,
        traces=(),
        engine_samples=(),
        host_samples=(),
        device_samples=(),
        workload=msgspec.structs.replace(run.workload, requests=()),
    )
    partial = folder / "run.json.partial"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(short), indent=1))
    partial.replace(folder / "run.json")  # last: its presence says that the folder is whole
    sync(folder)


def read_run(folder: Path, *, without: Collection[str] = ()) -> Run:
    """The run stored in ``folder``; RequestError says which file is missing or damaged.

    ``without`` names lists to leave out (``traces``), which stay empty.
    """
    head = folder / "run.json"
    if not head.is_file():
        if (folder / BEGUN).is_file():
            raise RequestError(
                f"the run {folder.name} was not finished: it was killed, or it goes on now",
                hint=f"see what there is of it: powerband load --show {folder}",
            )
        raise RequestError(
            f"no run in {folder}", hint="a run's folder holds run.json; list runs with: powerband journal"
        )
    try:
        short = msgspec.json.decode(head.read_bytes(), type=Run)
        kinds = {name: kind for name, kind in _LISTS.items() if name not in without}
        lists = {name: tuple(_read_lines(folder / f"{name}.jsonl.gz", kind)) for name, kind in kinds.items()}
        requests = tuple(_read_lines(folder / "workload.jsonl.gz", RequestSpec))
        watched = (folder / _DEVICES).is_file()
        lists["device_samples"] = tuple(_read_lines(folder / _DEVICES, DeviceSample)) if watched else ()
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise RequestError(f"the run in {folder} is damaged: {error}", hint="its evidence cannot be used") from error
    if "traces" in lists:  # some were logged as they ended
        lists["traces"] = tuple(sorted(lists["traces"], key=lambda trace: trace.index))
    workload = msgspec.structs.replace(short.workload, requests=requests)
    return msgspec.structs.replace(short, workload=workload, **lists)


def is_run(folder: Path) -> bool:
    """Whether a run was finished or at least begun there."""
    return (folder / "run.json").is_file() or (folder / BEGUN).is_file()


def new_run_id(command: str) -> str:
    return f"{command}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def run_ids(home: Path) -> list[str]:
    """Finished runs of a home, by name."""
    return sorted(path.parent.name for path in (home / "runs").glob("*/run.json"))


def find_run(home: Path, run_id: str, *, hint: str = "give --home, or a run's folder") -> Path:
    """The folder of a run in a home; RequestError names the near ones, or gives ``hint`` where there are none."""
    folder = home / "runs" / run_id
    if is_run(folder):
        return folder
    known = run_ids(home)
    if not known:
        raise RequestError(f"{run_id!r} is no file, and there are no runs in {home}", hint=hint)
    raise unknown_name("run", run_id, known)


def _write_lines(path: Path, rows: Iterable[Any]) -> None:
    with gzip.open(path, "wb", compresslevel=4) as file:
        for row in rows:
            file.write(msgspec.json.encode(row) + b"\n")


def _read_lines(path: Path, kind: type[_Row]) -> list[_Row]:
    decoder = msgspec.json.Decoder(kind)
    if not path.stat().st_size:  # which gzip takes for a whole file of no lines
        raise EOFError(f"{path.name} is empty")
    with gzip.open(path, "rb") as file:
        return [decoder.decode(line) for line in file]
