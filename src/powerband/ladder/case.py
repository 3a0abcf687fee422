"""What a ladder is about: the request as typed, made concrete."""

from dataclasses import dataclass
from functools import cached_property

import msgspec

from powerband.account.weights import requantised
from powerband.case import CaseRequest, window_s
from powerband.engines.base import get_engine
from powerband.engines.settings import split_settings
from powerband.ladder.rungs import STARTS, Ask, engines_of
from powerband.load.traffic import build_workload
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.records.config import Value, parse_settings
from powerband.records.errors import RequestError, unknown_name
from powerband.records.hardware import DeviceSpec
from powerband.records.ladder import RungPlan
from powerband.records.model import ModelSpec
from powerband.records.slo import Slo, parse_slo
from powerband.records.workload import Workload

_REQUESTS = 2_000  # more than any rung serves in its window: the window ends a load, not the list
_ON_CARD, _ON_HOST = 64, 8  # requests kept in flight where the traffic says only when they arrive
_ALONE_REQUESTS, _ALONE_S = 6, 45.0  # of the load that sends one request at a time: it ends with the first of both


@dataclass(frozen=True)
class LadderCase:
    """``workload`` holds the requests in order; every load keeps some number of them in flight for a window."""

    request: CaseRequest
    model: ModelSpec
    device: DeviceSpec
    workload: Workload
    concurrency: int
    slo: Slo | None
    set_knobs: dict[str, dict[str, Value]]
    notes: tuple[str, ...]

    @property
    def on_card(self) -> bool:
        return self.device.kind != "cpu"

    @property
    def ask(self) -> Ask:
        return Ask(
            model=self.request.model,
            engine=self.request.engine,
            workload=self.workload,
            concurrency=self.concurrency,
            on_card=self.on_card,
            quantized=self.request.quantized or "",
            set_knobs=self.set_knobs,
        )

    @property
    def window_s(self) -> float:
        return window_s(self.request)

    def at(self, concurrency: int) -> Workload:
        """The same requests with ``concurrency`` of them in flight; the first few where it is one at a time."""
        requests = self.workload.requests if concurrency > 1 else self.workload.requests[:_ALONE_REQUESTS]
        return msgspec.structs.replace(
            self.workload,
            concurrency=concurrency,
            requests=tuple(msgspec.structs.replace(one, offset_ns=0) for one in requests),
        )

    def span_s(self, concurrency: int) -> float:
        """Seconds of a load, at most."""
        return _ALONE_S if concurrency == 1 else self.window_s

    @cached_property
    def _quantized(self) -> ModelSpec | None:
        return read_model(self.request.quantized) if self.request.quantized else None

    def model_of(self, plan: RungPlan) -> ModelSpec:
        """The model as this rung's engine holds it."""
        if self._quantized is not None and plan.config.model == self.request.quantized:
            return self._quantized
        if plan.config.engine == "transformers":
            return held_by_transformers(self.model, str(plan.config.knobs.get("dtype", "auto")), on_card=self.on_card)
        if plan.weights and self.model.quantisation == "none":
            return requantised(self.model, plan.weights)
        return self.model


def held_by_transformers(model: ModelSpec, dtype: str, *, on_card: bool) -> ModelSpec:
    """Transformers unpacks a GGUF file to the type it computes in: float32 on a CPU unless told."""
    if model.quantisation not in ("none", "gguf") or not model.parts:
        return model
    name = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}.get(dtype, "bf16" if on_card else "f32")
    each = 4 if name == "f32" else 2
    parts = tuple(msgspec.structs.replace(part, bytes=each * part.parameters, dtype=name) for part in model.parts)
    total = sum(part.bytes for part in parts)
    return msgspec.structs.replace(
        model, parts=parts, weight_bytes=total, weight_dtype=name, compute_dtype=name, quantisation="none"
    )


def prepare_ladder(request: CaseRequest) -> LadderCase:
    """Read everything the request names; raises RequestError before anything is started."""
    if request.ladder_from not in STARTS:
        raise unknown_name("start of a ladder", str(request.ladder_from), STARTS)
    if request.rivals:
        raise RequestError("a ladder ends at one engine", hint=f"such as --engine {request.engine}")
    engines = engines_of(request.engine, request.model)
    pairs = split_settings(request.settings, engines)
    device = read_device(request.device)
    model = read_model(request.model)
    workload, concurrency, notes = _traffic(request, on_card=device.kind != "cpu")
    if 0 < model.context_tokens < workload.longest_tokens:
        raise RequestError(
            f"the longest request has {workload.longest_tokens} tokens, the model's context {model.context_tokens}",
            hint="shorten with --scale-lengths",
        )
    return LadderCase(
        request=request,
        model=model,
        device=device,
        workload=workload,
        concurrency=concurrency,
        slo=parse_slo(request.slo) if request.slo is not None else None,
        set_knobs={name: parse_settings(pairs[name], get_engine(name).knobs()) for name in engines},
        notes=notes,
    )


def _traffic(request: CaseRequest, *, on_card: bool) -> tuple[Workload, int, tuple[str, ...]]:
    workload = build_workload(
        request.traffic,
        requests=request.requests or _REQUESTS,
        scale_lengths=request.scale_lengths,
        scale_outputs=request.scale_outputs,
        seed=request.seed,
    )
    if workload.concurrency is not None:
        return workload, workload.concurrency, ()
    count = _ON_CARD if on_card else _ON_HOST
    note = f"the traffic's arrivals are not used: each load keeps a number in flight, {count} for the offered one"
    return workload, count, (note,)
