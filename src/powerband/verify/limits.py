"""What each task stands: the limits of the quality gate, as data with their sources."""

import functools
import tomllib
from importlib.resources import files

import msgspec

from powerband.records.quality import Preset, QualityLimit

_LEVEL: dict[Preset, str] = {"chat": "wide", "summarise": "wide", "code": "narrow", "maths": "narrow"}


def limits_for(preset: Preset) -> dict[str, QualityLimit]:
    """The limits of ``preset`` by metric name."""
    return {limit.metric: limit for limit in _levels()[_LEVEL[preset]]}


@functools.cache
def _levels() -> dict[str, list[QualityLimit]]:
    text = files("powerband.verify").joinpath("data", "quality_limits.toml").read_text(encoding="utf-8")
    return {
        level: [msgspec.convert({"metric": metric, **fields}, QualityLimit) for metric, fields in rows.items()]
        for level, rows in tomllib.loads(text).items()
    }
