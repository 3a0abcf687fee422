"""A profiler's trace, whichever profiler wrote it."""

from pathlib import Path

from powerband.probes.kineto import read_kineto
from powerband.probes.nsys import is_sqlite, read_nsys
from powerband.records.errors import RequestError
from powerband.records.timeline import Timeline


def read_trace(path: Path) -> Timeline:
    """What the first bytes of a trace say it is counts, not its name; raises RequestError where it cannot be read."""
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise RequestError(
            f"{path.name} is an Nsight Systems report that was not exported",
            hint=f"export it first: nsys export --type sqlite {path.name}",
        )
    return read_nsys(path) if is_sqlite(path) else read_kineto(path)
