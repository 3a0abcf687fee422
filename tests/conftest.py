"""Fixtures that every kind of test shares."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def field_dir() -> Path:
    """Facts others measured, kept beside the repository; tests that need them skip where they are absent."""
    place = os.environ.get("POWERBAND_FIELD")
    folder = Path(place) if place else Path(__file__).resolve().parents[2] / "shared" / "field"
    if not folder.is_dir():
        pytest.skip(f"no field data at {folder} (set POWERBAND_FIELD)")
    return folder
