"""What an engine is asked to do, which knobs it has, and what it says it really does."""

import hashlib
import math
from typing import Literal

import msgspec

from powerband.records.errors import RequestError, unknown_name
from powerband.records.finding import Cause
from powerband.records.value import Record

Value = bool | int | float | str

# The knob that sets how many cards share each layer, by engine; the others have none.
TENSOR_KNOB = {"vllm": "tensor_parallel_size", "sglang": "tp_size", "tensorrt-llm": "tp_size", "tgi": "num_shard"}


class Knob(Record):
    """One engine setting, in the engine's own spelling.

    ``grid`` holds the values worth trying, in order; ``naive`` is what an unadvised user runs with; ``numerics`` marks
    a knob that changes the answers: a value other than ``naive`` must pass the quality gate before it is advised.
    """

    name: str
    kind: Literal["int", "float", "bool", "choice", "text"]
    help: str
    naive: Value
    grid: tuple[Value, ...] = ()
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    addresses: tuple[Cause, ...] = ()
    numerics: bool = False

    def parse(self, text: str) -> Value:
        """The value written as ``text``; raises RequestError that says what is accepted."""
        word = text.strip()
        if self.kind == "bool":
            if word.lower() in {"true", "on", "1", "yes"}:
                return True
            if word.lower() in {"false", "off", "0", "no"}:
                return False
            raise self._refuse(text, "true or false")
        if self.kind == "choice":
            if word not in self.choices:
                raise unknown_name(f"value for knob {self.name}", word, self.choices)
            return word
        if self.kind == "text":
            return word
        try:
            number: int | float = int(word) if self.kind == "int" else float(word)
        except ValueError:
            raise self._refuse(text, "a whole number" if self.kind == "int" else "a number") from None
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not low <= number <= high:
            raise self._refuse(text, f"{low:g} to {high:g}")
        return number

    def _refuse(self, text: str, accepted: str) -> RequestError:
        return RequestError(f"knob {self.name}={text!r} is not accepted", hint=f"accepted: {accepted}")


class EngineConfig(Record):
    """An engine, a model and the knobs that were set; a knob left out keeps the engine's own default."""

    engine: str
    model: str
    knobs: dict[str, Value] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for equal configs, whatever the order of the knobs: 12 hex digits."""
        canonical = msgspec.json.encode([self.engine, self.model, sorted(self.knobs.items())])
        return hashlib.sha256(canonical).hexdigest()[:12]

    def replace(self, **knobs: Value) -> "EngineConfig":
        return EngineConfig(engine=self.engine, model=self.model, knobs={**self.knobs, **knobs})

    def changes_from(self, other: "EngineConfig") -> dict[str, Value]:
        """The knobs that differ from ``other``, with the values here."""
        return {name: value for name, value in self.knobs.items() if other.knobs.get(name) != value}


def tensor_parallel(config: EngineConfig) -> int:
    """How many cards share each layer; 1 where the config does not say."""
    return max(1, int(config.knobs.get(TENSOR_KNOB.get(config.engine, ""), 1)))


def copies_of(config: EngineConfig) -> int:
    """Copies of the model that share the requests; attention's own copies lie on the tensor's cards and are none."""
    if config.knobs.get("enable_dp_attention") is True:
        return 1
    return math.prod(max(1, int(config.knobs.get(name, 1))) for name in ("data_parallel_size", "dp_size"))


def cards_of(config: EngineConfig) -> int:
    """Cards that a config spreads over: tensor x pipeline x data parallel."""
    pipeline = math.prod(max(1, int(config.knobs.get(name, 1))) for name in ("pipeline_parallel_size", "pp_size"))
    return tensor_parallel(config) * pipeline * copies_of(config)


def check_count(count: int) -> None:
    """Raise RequestError for a number of cards that no request may name."""
    if not 1 <= count <= 4096:
        raise RequestError(f"count {count} is not possible", hint="accepted: 1 to 4096 devices")


def over_cards(config: EngineConfig, count: int, *, instead: str) -> EngineConfig:
    """``config`` on ``count`` cards: as tensor parallelism where it says nothing of it, which is how account counts.

    Raises RequestError where the cards cannot be shared so; ``instead`` is the hint for an engine that splits no layer.
    """
    check_count(count)
    knob = TENSOR_KNOB.get(config.engine)
    if count == 1 or (knob in config.knobs and count % tensor_parallel(config) == 0):
        return config
    if knob is None:
        raise RequestError(f"{config.engine} splits no layer over {count} cards", hint=instead)
    if knob in config.knobs:
        raise RequestError(
            f"{knob}={config.knobs[knob]} does not go into {count} cards", hint=f"choose a {knob} that divides {count}"
        )
    return config.replace(**{knob: count})


class Effective(Record, tag_field="is", tag="effective"):
    """What the engine reports that it does, beside what was asked; ``source`` names where it was read."""

    values: dict[str, Value]
    source: str
    differs: dict[str, str] = msgspec.field(default_factory=dict)  # knob -> "asked 8, runs 4"


def parse_settings(pairs: list[str], knobs: tuple[Knob, ...]) -> dict[str, Value]:
    """Read ``--set key=value`` pairs against an engine's knobs; unknown keys list near names."""
    by_name = {knob.name: knob for knob in knobs}
    values: dict[str, Value] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals:
            raise RequestError(f"cannot read --set {pair!r}", hint="write key=value, such as --set n_parallel=8")
        if name not in by_name:
            raise unknown_name("knob", name, by_name)
        if name in values:
            raise RequestError(f"--set names {name} twice", hint="give it once; --sweep tries several values")
        values[name] = by_name[name].parse(text)
    return values
