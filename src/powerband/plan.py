"""A plan file: one engine config as TOML, written by a loop and read by verify."""

import json
import tomllib
from pathlib import Path

import msgspec

from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError


def write_plan(path: Path, config: EngineConfig, comment: str) -> None:
    """Write ``config``; strings, numbers and booleans of JSON are TOML as they are."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"engine = {json.dumps(config.engine)}", f"model = {json.dumps(config.model)}", "", "[knobs]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in sorted(config.knobs.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_plan(path: Path) -> EngineConfig:
    """Read a plan; raises RequestError with the line or field that is wrong."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), EngineConfig)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        hint = 'a plan holds engine = "...", model = "..." and a [knobs] table'
        raise RequestError(f"cannot read plan {path}: {error}", hint=hint) from error
