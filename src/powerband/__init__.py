"""powerband: account, locate, tune and verify LLM inference on real engines."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``powerband.profile`` is loaded when it is used: importing powerband imports nothing heavy."""
    if name == "profile":
        return import_module("powerband.profiling.attach").profile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
