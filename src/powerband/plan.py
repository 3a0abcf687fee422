"""A plan file: one engine config as TOML, the promise it keeps and the traffic that was looked at; verify reads it."""

import json
import tomllib
from pathlib import Path

import msgspec

from powerband.records.config import EngineConfig, Value
from powerband.records.errors import RequestError, in_words
from powerband.records.value import Record

_HINT = 'a plan holds engine = "...", model = "..." and a [knobs] table'


class Plan(Record):
    """``slo`` as it is typed, empty for none; ``holds_for`` says in words what traffic it was measured under."""

    engine: str
    model: str
    knobs: dict[str, Value]
    slo: str = ""
    holds_for: str = ""

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(engine=self.engine, model=self.model, knobs=self.knobs)


def write_plan(path: Path, plan: Plan, comment: str = "") -> None:
    """Strings, numbers and booleans of JSON are TOML as they are."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{name} = {json.dumps(getattr(plan, name))}" for name in ("engine", "model", "slo", "holds_for")]
    lines += ["", "[knobs]", *(f"{name} = {json.dumps(value)}" for name, value in sorted(plan.knobs.items()))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_plan(path: Path) -> Plan:
    """Read a plan; raises RequestError with the line or field that is wrong."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Plan)
    except (OSError, UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise RequestError(f"cannot read plan {path}: {in_words(error)}", hint=_HINT) from error


def read_plan(path: Path) -> EngineConfig:
    """The config of a plan."""
    return load_plan(path).config
