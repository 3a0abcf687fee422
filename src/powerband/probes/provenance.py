"""Where and by what a run is made: this host, this Python, this version."""

import platform
from datetime import UTC, datetime

from powerband import __version__
from powerband.records.run import Provenance


def read_provenance(command: str, engine_version: str = "unknown") -> Provenance:
    """Of a run that starts now."""
    return Provenance(
        powerband=__version__,
        command=command,
        started_at=datetime.now(UTC).isoformat(),
        host=f"{platform.node()} {platform.machine()} {platform.system()} {platform.release()}",
        engine_version=engine_version,
        python=platform.python_version(),
    )
