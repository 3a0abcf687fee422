"""Where reconciled memory residuals are kept: one small JSON file beside the journal."""

from pathlib import Path

import msgspec

from powerband.records.errors import RequestError
from powerband.records.memory import Residual
from powerband.stores.files import replace_file

_NAME = "memory-residuals.json"


def load_residuals(home: Path) -> list[Residual]:
    """Everything reconciled so far; empty where nothing was. Raises RequestError for a file that cannot be read."""
    path = home / _NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Residual])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise RequestError(f"cannot read {path}: {error}", hint="delete it to start over, or restore it") from None


def find_residual(home: Path, *, device: str, engine: str, version: str, family: str) -> Residual | None:
    """The residual of this key; a version "" takes the newest entry of any version."""
    wanted = (device, engine, family)
    for residual in reversed(load_residuals(home)):
        same = (residual.device, residual.engine, residual.family) == wanted
        if same and version in ("", residual.engine_version):
            return residual
    return None


def save_residual(home: Path, residual: Residual) -> Path:
    """Put ``residual`` in the place of the one with the same key; the file is replaced whole, never half written."""
    kept = [entry for entry in load_residuals(home) if _key(entry) != _key(residual)]
    return replace_file(home / _NAME, msgspec.json.format(msgspec.json.encode([*kept, residual]), indent=1))


def _key(residual: Residual) -> tuple[str, str, str, str]:
    return residual.device, residual.engine, residual.engine_version, residual.family
