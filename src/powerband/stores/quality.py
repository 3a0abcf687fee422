"""Where the gate's verdicts and a reference's evidence are kept: one file a content key, beside the journal."""

import contextlib
import os
from pathlib import Path

import msgspec

from powerband.records.errors import MachineError
from powerband.records.quality import Evidence, QualityReport

_FOLDER = "quality"


def load_report(home: Path, key: str) -> QualityReport | None:
    """The verdict kept under ``key``; None where there is none that can be read."""
    try:
        return msgspec.json.decode((home / _FOLDER / f"{key}.json").read_bytes(), type=QualityReport)
    except (OSError, msgspec.DecodeError):
        return None


def save_report(home: Path, key: str, report: QualityReport) -> Path:
    return _replace(home / _FOLDER / f"{key}.json", msgspec.json.format(msgspec.json.encode(report), indent=1))


def load_evidence(home: Path, key: str) -> Evidence | None:
    """Evidence kept under ``key``; a file that cannot be read is as none, and is measured again."""
    try:
        return msgspec.msgpack.decode((home / _FOLDER / f"{key}.evidence").read_bytes(), type=Evidence)
    except (OSError, msgspec.DecodeError):
        return None


def save_evidence(home: Path, key: str, evidence: Evidence) -> Path:
    return _replace(home / _FOLDER / f"{key}.evidence", msgspec.msgpack.encode(evidence))


def _replace(path: Path, content: bytes) -> Path:
    """The file is there whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise MachineError(f"cannot write {path}: {error.strerror}", hint="free disk space, or set --home") from None
    return path
