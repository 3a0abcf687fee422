"""Does this engine run this format on this card for this model? Answered from a table with sources, before any work."""

import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from powerband.account.constants import parse_version
from powerband.quantize.shapes import odd_size
from powerband.records.config import Value
from powerband.records.errors import unknown_name
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.quantisation import Caveat, Support
from powerband.records.value import Record

_TP_KNOBS = ("tensor_parallel_size", "tp_size", "num_shard", "tp")


class FormatFacts(Record):
    """What a stored format is: bits of a weight, bits of what multiplies it, and its name in the memory ledger."""

    title: str
    bits: float
    activations: int
    storage: str = ""


class When(Record):
    """Conditions of a rule, all of which must hold; one left out is not asked."""

    vendor: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    arch: tuple[str, ...] = ()
    cc_from: float | None = None
    cc_below: float | None = None
    family: tuple[str, ...] = ()
    experts: bool | None = None
    tp_above: int | None = None
    divides: str = ""
    knobs: dict[str, tuple[Any, ...]] = msgspec.field(default_factory=dict)
    version_from: str = ""
    version_below: str = ""


class Rule(Record):
    """A row of the table. ``formats`` and ``engines`` are patterns.

    ``prefill`` and ``decode`` are times seen over those of 16-bit weights, for prompts and for a token at batch 1.
    """

    id: str
    formats: tuple[str, ...]
    engines: tuple[str, ...]
    answer: str
    why: str
    source: str
    when: When = When()
    kernel: str = ""
    instead: tuple[str, ...] = ()
    prefill: float | None = None
    decode: float | None = None


class Table(Record):
    """The whole table, and the day it was last checked against its sources."""

    version: str
    format: dict[str, FormatFacts]
    rule: tuple[Rule, ...]


class Question(Record):
    """One combination; ``knobs`` are engine settings, and facts of the checkpoint such as desc_act."""

    format: str
    engine: str
    device: DeviceSpec
    model: ModelSpec | None = None
    engine_version: str = ""
    knobs: dict[str, Value] = msgspec.field(default_factory=dict)
    tp: int = 1


@cache
def read_table() -> Table:
    """The table shipped with the package; a field that no record knows is an error."""
    text = files("powerband.quantize").joinpath("data", "compatibility.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Table, strict=False)


def check_support(question: Question) -> Support:
    """The first rule that fits answers; every caveat that fits is added. Raises RequestError for an unknown format."""
    table = read_table()
    if question.format not in table.format:
        raise unknown_name("format", question.format, table.format)
    fitting = [rule for rule in table.rule if _fits(rule, question)]
    caveats = tuple(
        Caveat(rule=rule.id, text=_why(rule, question), source=rule.source)
        for rule in fitting
        if rule.answer == "caveat"
    )
    decided = next((rule for rule in fitting if rule.answer != "caveat"), None)
    if decided is None:
        return Support(
            format=question.format, engine=question.engine, device=question.device.name, answer="unknown",
            why="no row of the table names this combination", caveats=caveats, instead=nearest(question),
        )  # fmt: skip
    refused = decided.answer in ("refused", "slow")
    return Support(
        format=question.format,
        engine=question.engine,
        device=question.device.name,
        answer=decided.answer,  # type: ignore[arg-type]
        why=_why(decided, question),
        rule=decided.id,
        kernel=decided.kernel,
        source=decided.source,
        instead=_instead(decided, question) if refused else (),
        caveats=() if decided.answer == "refused" else caveats,
        prefill_seen=decided.prefill,
        decode_seen=decided.decode,
    )


def nearest(question: Question, limit: int = 3) -> tuple[str, ...]:
    """Formats that run there, those of about as many bits first."""
    table = read_table()
    wanted = table.format[question.format]
    cache_format = question.format.startswith("kv:")
    plain = _without_format_flags(question)
    found = [
        name
        for name in table.format
        if name != question.format and name.startswith("kv:") == cache_format and name != "none"
        and _decide(table, msgspec.structs.replace(plain, format=name)) == "runs"
    ]  # fmt: skip
    found.sort(key=lambda name: (abs(table.format[name].bits - wanted.bits), table.format[name].bits))
    return tuple(found[:limit])


def _instead(rule: Rule, question: Question) -> tuple[str, ...]:
    """The rule's own advice where it runs there, else what does."""
    table = read_table()
    plain = _without_format_flags(question)
    advised = [
        name for name in rule.instead if _decide(table, msgspec.structs.replace(plain, format=name)) in ("runs", "slow")
    ]
    return tuple(advised) or nearest(question)


def _without_format_flags(question: Question) -> Question:
    """Another format would not be started with the flags of this one."""
    dropped = {"quantization", "quantize", "desc_act", "version", "imatrix", "weights"}
    knobs = {name: value for name, value in question.knobs.items() if name not in dropped}
    return msgspec.structs.replace(question, knobs=knobs)


def _decide(table: Table, question: Question) -> str:
    return next((rule.answer for rule in table.rule if rule.answer != "caveat" and _fits(rule, question)), "unknown")


def _why(rule: Rule, question: Question) -> str:
    if rule.when.divides and question.model is not None:
        return f"{odd_size(question.model, rule.when.divides, ranks(question))}: {rule.why}"
    return rule.why


def ranks(question: Question) -> int:
    """Tensor-parallel ranks asked for, by whichever knob the engine has for it."""
    asked = [int(question.knobs[name]) for name in _TP_KNOBS if name in question.knobs]
    return max([question.tp, *asked])


def _fits(rule: Rule, question: Question) -> bool:
    return (
        any(fnmatchcase(question.format, pattern) for pattern in rule.formats)
        and any(fnmatchcase(question.engine, pattern) for pattern in rule.engines)
        and _fits_card(rule.when, question.device)
        and _fits_model(rule.when, question)
        and _fits_knobs(rule.when.knobs, question.knobs)
        and _fits_version(rule.when, question.engine_version)
    )


def _fits_card(when: When, device: DeviceSpec) -> bool:
    if when.vendor and device.vendor not in when.vendor:
        return False
    if when.kind and device.kind not in when.kind:
        return False
    if when.arch and device.compute_capability not in when.arch:
        return False
    if when.cc_from is None and when.cc_below is None:
        return True
    try:
        capability = float(device.compute_capability)
    except ValueError:
        return False
    return (when.cc_from is None or capability >= when.cc_from) and (
        when.cc_below is None or capability < when.cc_below
    )


def _fits_model(when: When, question: Question) -> bool:
    tp = ranks(question)
    if when.tp_above is not None and tp <= when.tp_above:
        return False
    if not (when.family or when.experts is not None or when.divides):
        return True
    model = question.model
    if model is None:
        return False
    if when.family and model.family not in when.family:
        return False
    if when.experts is not None and bool(model.experts) != when.experts:
        return False
    return not when.divides or bool(odd_size(model, when.divides, tp))


def _fits_knobs(wanted: Mapping[str, tuple[Any, ...]], knobs: Mapping[str, Value]) -> bool:
    return all(name in knobs and knobs[name] in values for name, values in wanted.items())


def _fits_version(when: When, version: str) -> bool:
    """A rule bound to versions fits only where the version is known; without one the newest is taken."""
    if not when.version_from and not when.version_below:
        return True
    if not version:
        return not when.version_below
    seen = parse_version(version)
    return (not when.version_from or seen >= parse_version(when.version_from)) and (
        not when.version_below or seen < parse_version(when.version_below)
    )
