"""Where the gate's verdicts and a reference's evidence are kept: one file a content key, beside the journal."""

from pathlib import Path

import msgspec

from powerband.records.quality import Evidence, QualityReport
from powerband.stores.files import replace_file

_FOLDER = "quality"


def load_report(home: Path, key: str) -> QualityReport | None:
    """The verdict kept under ``key``; None where there is none that can be read."""
    try:
        return msgspec.json.decode((home / _FOLDER / f"{key}.json").read_bytes(), type=QualityReport)
    except (OSError, msgspec.DecodeError):
        return None


def save_report(home: Path, key: str, report: QualityReport) -> Path:
    return replace_file(home / _FOLDER / f"{key}.json", msgspec.json.format(msgspec.json.encode(report), indent=1))


def load_evidence(home: Path, key: str) -> Evidence | None:
    """Evidence kept under ``key``; a file that cannot be read is as none, and is measured again."""
    try:
        return msgspec.msgpack.decode((home / _FOLDER / f"{key}.evidence").read_bytes(), type=Evidence)
    except (OSError, msgspec.DecodeError):
        return None


def save_evidence(home: Path, key: str, evidence: Evidence) -> Path:
    return replace_file(home / _FOLDER / f"{key}.evidence", msgspec.msgpack.encode(evidence))
