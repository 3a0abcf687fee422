"""Fixtures that every kind of test shares."""

import os
import signal
from pathlib import Path

import pytest

# A run started in the background inherits an ignored Ctrl-C, and so would every program that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def field_dir() -> Path:
    """Facts others measured, kept beside the repository; tests that need them skip where they are absent."""
    place = os.environ.get("POWERBAND_FIELD")
    folder = Path(place) if place else Path(__file__).resolve().parents[2] / "shared" / "field"
    if not folder.is_dir():
        pytest.skip(f"no field data at {folder} (set POWERBAND_FIELD)")
    return folder
