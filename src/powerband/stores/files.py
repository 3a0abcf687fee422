"""Files that are there whole or not at all."""

import contextlib
import os
from pathlib import Path

from powerband.records.errors import MachineError


def replace_file(path: Path, content: bytes) -> Path:
    """Write ``path``, in the place of what it held; raises MachineError, which leaves what was there."""
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


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
