"""What is possible for this model, engine and card: support, memory, speed at the traffic and risk, before any work."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from powerband.account.ledger import compute_ledger
from powerband.quantize.compatibility import Question, check_support, read_table
from powerband.quantize.methods import NEEDS_IMATRIX, Job, parse_method
from powerband.quantize.resized import WIDE, at_sixteen_bits, in_format, stored_format
from powerband.quantize.shapes import group_size
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.quantisation import CacheRow, Forecast, PlanRow, Support
from powerband.records.value import Record
from powerband.records.workload import Workload
from powerband.simulate.scheduler import MODELLED
from powerband.simulate.step_time import FACTORS, StepTime, predict_from_datasheet
from powerband.simulate.what_if import WhatIf, figures_of, what_if

Task = Literal["chat", "summarise", "code", "maths"]
Risk = Literal["low", "medium", "high"]
_SMALL = 2_000_000_000  # parameters below which narrow weights cost more, by every published table of K-quants
_PROMPT_TOKENS = 2048  # of the prompt whose time prefill_ratio compares


# Settings that quantise 16-bit weights while loading, in each engine's own spelling.
ON_LOAD = {
    ("vllm", "fp8"): "quantization=fp8",
    ("vllm", "bnb-nf4"): "quantization=bitsandbytes",
    ("sglang", "fp8"): "quantization=fp8",
    ("sglang", "torchao-int4"): "torchao_config=int4wo-128",
    ("sglang", "torchao-int8"): "torchao_config=int8wo",
    ("tgi", "fp8"): "quantize=fp8",
    ("tgi", "bnb-nf4"): "quantize=bitsandbytes-nf4",
    ("tgi", "bnb-int8"): "quantize=bitsandbytes",
}
_CACHE: dict[str, dict[str, dict[str, str]]] = {
    "vllm": {"kv:fp8": {"kv_cache_dtype": "fp8"}, "kv:fp8_e5m2": {"kv_cache_dtype": "fp8_e5m2"}},
    "sglang": {"kv:fp8": {"kv_cache_dtype": "fp8_e4m3"}, "kv:fp8_e5m2": {"kv_cache_dtype": "fp8_e5m2"}},
    "tensorrt-llm": {"kv:fp8": {"kv_cache_dtype": "fp8"}, "kv:int8": {"kv_cache_dtype": "int8"}},
    "llamacpp": {
        "kv:q8_0": {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        "kv:q4_0": {"cache_type_k": "q4_0", "cache_type_v": "q4_0"},
    },
}


class Setting(Record):
    """What stays the same over the rows of a plan; ``model`` is the checkpoint as it is stored."""

    model: ModelSpec
    device: DeviceSpec
    config: EngineConfig
    count: int = 1
    traffic: Workload | None = None
    engine_version: str = ""
    task: Task = "chat"
    step_time: StepTime | None = None  # calibrated by runs; None: from the datasheet


class Plan(Record):
    """``stored``: whether the engine runs the checkpoint as it is. ``base``: the forecast of 16-bit weights."""

    table_version: str
    stored: Support | None
    base: Forecast | None
    rows: tuple[PlanRow, ...]
    cache: tuple[CacheRow, ...] = ()


def question(setting: Setting, name: str) -> Question:
    return Question(
        format=name,
        engine=setting.config.engine,
        device=setting.device,
        model=setting.model,
        engine_version=setting.engine_version,
        knobs=setting.config.knobs,
    )


def make_plan(setting: Setting, methods: Sequence[str], tool: str | None = None) -> Plan:
    """A row for each method: what fits, then what does not, each with the least risk first; last what cannot run."""
    rows = [_row(setting, parse_method(name, tool)) for name in methods]
    order = {"runs": 0, "slow": 1, "unknown": 2, "refused": 3}
    risks = {"low": 0, "medium": 1, "high": 2}
    rows.sort(key=lambda row: (*_room(row), order[row.support.answer], risks[row.risk], _speed(row)))
    stored = stored_format(setting.model)
    return Plan(
        table_version=read_table().version,
        stored=check_support(question(setting, stored)) if stored and setting.config.engine != "any" else None,
        base=forecast(setting, at_sixteen_bits(setting.model), None),
        rows=tuple(rows),
        cache=tuple(_cache_rows(setting)),
    )


def _cache_rows(setting: Setting) -> Iterator[CacheRow]:
    for name, settings in _CACHE.get(setting.config.engine, {}).items():
        support = check_support(question(setting, name))
        row = CacheRow(format=name, settings=settings, support=support)
        if support.possible:
            narrower = msgspec.structs.replace(setting, config=setting.config.replace(**settings))
            found = forecast(narrower, setting.model, None, speeds=False)
            if found is not None:
                row = msgspec.structs.replace(row, kv_tokens=found.kv_tokens, users=found.users)
        yield row


def _room(row: PlanRow) -> tuple[bool, bool]:
    return not row.support.possible, row.forecast is not None and not row.forecast.fits


def _speed(row: PlanRow) -> float:
    return -(row.forecast.output_tokens_per_s or 0.0) if row.forecast else 0.0


def _row(setting: Setting, job: Job) -> PlanRow:
    support = ask(setting, job)
    risk, why = judge_risk(setting, job)
    row = PlanRow(
        method=job.asked, format=job.format, support=support, risk=risk, risk_why=why, tool=job.tool.name,
        needs_calibration=job.method.calibration == "wanted",
        on_load=ON_LOAD.get((setting.config.engine, job.format), ""),
    )  # fmt: skip
    if not support.possible:
        return msgspec.structs.replace(row, missing="refused" if support.answer == "refused" else "not known to run")
    found = forecast(setting, in_format(setting.model, job.format, job.group), support)
    return msgspec.structs.replace(row, forecast=found)


def ask(setting: Setting, job: Job) -> Support:
    """The table's answer, after what the checkpoint itself rules out; with the engine ``any`` that alone is asked."""
    own = refuse_source(setting.model, job)
    if own is not None:
        return msgspec.structs.replace(own, engine=setting.config.engine, device=setting.device.name)
    if setting.config.engine == "any":
        return Support(
            format=job.format, engine="any", device=setting.device.name, answer="unknown",
            why="no engine was named: nothing is known of who can serve it",
        )  # fmt: skip
    knobs = {**setting.config.knobs, **{key: job.options[key] for key in ("desc_act",) if key in job.options}}
    return check_support(msgspec.structs.replace(question(setting, job.format), knobs=knobs))


def refuse_source(model: ModelSpec, job: Job) -> Support | None:
    """Why this checkpoint cannot be the source; None where it can."""
    stored = model.quantisation
    if job.method.name == "gguf":
        if stored in ("none", "gguf"):
            return None
        return _no(job, f"the checkpoint is {stored} already: convert the original weights", "quantised-source")
    if stored == "gguf":
        return _no(job, f"{job.tool.name} reads a folder of safetensors, and this is a GGUF file", "gguf-source")
    if stored != "none":
        return _no(job, f"the checkpoint is {stored} already: quantise the original weights", "quantised-source")
    if job.method.groups:
        return _group_fault(model, job)
    return None


def _group_fault(model: ModelSpec, job: Job) -> Support | None:
    asked = job.group
    if asked is None and group_size(model) is None:
        return _no(job, "no group of 32, 64 or 128 inputs divides every layer of this model", "group-size")
    if asked and any(size % asked for size in (model.hidden, model.intermediate) if size):
        fitting = group_size(model)
        return _no(
            job, f"group={asked} does not divide {model.hidden} and {model.intermediate}; group={fitting}", "group-size"
        )
    return None


def _no(job: Job, why: str, rule: str) -> Support:
    return Support(
        format=job.format, engine="", device="", answer="refused", why=why, rule=rule, source="the checkpoint"
    )


def judge_risk(setting: Setting, job: Job) -> tuple[Risk, str]:
    """Low, medium or high before anything was measured; the quality gate decides."""
    bits = read_table().format[job.format].bits
    level, why = (0, "8 bits or more") if bits >= 8 else (1, f"{bits:g} bits") if bits >= 4 else (2, f"{bits:g} bits")
    if bits < 8 and setting.task in ("code", "maths"):
        level, why = 2, f"{bits:g} bits for {setting.task}: 8 until shown otherwise"
    elif bits < 6 and setting.model.parameters < _SMALL:
        level, why = level + 1, f"{why}, and a small model loses more"
    if setting.model.weight_dtype not in WIDE and bits < 16:
        level, why = level + 1, f"{why}, and the weights were quantised before ({setting.model.weight_dtype})"
    if job.format.removeprefix("gguf:") in NEEDS_IMATRIX:
        level, why = 2, f"{why}, garbage without an importance matrix"
    return ("low", "medium", "high")[min(level, 2)], why


def forecast(setting: Setting, model: ModelSpec, support: Support | None, *, speeds: bool = True) -> Forecast | None:
    """Memory by the ledger and speed by simulation of ``model``; None where the engine has no ledger here."""
    try:
        ledger = compute_ledger(
            model, setting.device, setting.config, count=setting.count, traffic=setting.traffic,
            version=setting.engine_version, remedies=False,
        )  # fmt: skip
    except RequestError:
        return None
    found = Forecast(
        weight_bytes=ledger.bytes_of("weights") * ledger.ranks,
        fits=ledger.fits,
        kv_tokens=ledger.capacity.kv_tokens,
        users=ledger.capacity.users_at_traffic,
    )
    if setting.config.engine not in MODELLED or not speeds:
        return found
    step = step_at(setting, model, support)
    plain = step_at(setting, at_sixteen_bits(setting.model), None)
    ratio = _prompt_s(step) / _prompt_s(plain)
    found = msgspec.structs.replace(found, prefill_ratio=round(ratio, 3), basis="simulated")
    if setting.traffic is None or not ledger.fits:
        return found
    simulated = what_if(setting.config, setting.traffic, step, kv_tokens=ledger.capacity.kv_tokens)
    return _with_speeds(found, simulated)


def _prompt_s(step: StepTime) -> float:
    return step.seconds(sequences=0, prefill_tokens=_PROMPT_TOKENS)


def _with_speeds(found: Forecast, simulated: WhatIf) -> Forecast:
    if simulated.metrics is None:
        return found
    figures = figures_of(simulated.metrics)
    return msgspec.structs.replace(
        found,
        output_tokens_per_s=figures.get("output_tokens_per_s"),
        ttft_p50_s=figures.get("ttft_p50_s"),
        tpot_p50_s=figures.get("tpot_p50_s"),
        intervals={name: simulated.intervals[name] for name in _SHOWN if name in simulated.intervals},
    )


_SHOWN = ("output_tokens_per_s", "ttft_p50_s", "tpot_p50_s")


def step_at(setting: Setting, model: ModelSpec, support: Support | None) -> StepTime:
    """Step time of ``model`` in this setting: its own bytes and arithmetic, then what the table saw of the kernel."""
    step = predict_from_datasheet(model, setting.device, setting.config)
    if setting.step_time is not None:
        step = msgspec.structs.replace(setting.step_time, model=model, config=setting.config, terms=step.terms)
    if support is None or (support.prefill_seen is None and support.decode_seen is None):
        return step
    plain = predict_from_datasheet(at_sixteen_bits(setting.model), setting.device, setting.config).terms
    factors = list(step.factors)
    if support.prefill_seen is not None:
        scale = support.prefill_seen * plain.token_s / step.terms.token_s if step.terms.token_s else 1.0
        for name in ("compute", "small_batch"):
            factors[FACTORS.index(name)] *= scale
    if support.decode_seen is not None and step.terms.weight_s > 0 and math.isfinite(step.terms.weight_s):
        factors[FACTORS.index("weights")] *= support.decode_seen * plain.weight_s / step.terms.weight_s
    return msgspec.structs.replace(step, factors=tuple(factors))
