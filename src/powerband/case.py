"""What one session is about: the request as typed, made concrete: model, device, engine, traffic, naive settings."""

import math
from dataclasses import dataclass, field, replace

import msgspec

from powerband.account.knobs import MEMORY_KNOBS
from powerband.account.ledger import compute_ledger
from powerband.account.reconcile import combined, reconcile
from powerband.account.rules import RULES
from powerband.engines.base import Engine, get_engine
from powerband.engines.settings import split_settings
from powerband.load.traffic import build_workload
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.probes.http import base_url
from powerband.records.config import (
    TENSOR_KNOB,
    EngineConfig,
    Value,
    cards_of,
    check_count,
    over_cards,
    parse_settings,
    tensor_parallel,
)
from powerband.records.errors import RequestError
from powerband.records.hardware import DeviceSpec
from powerband.records.memory import EngineReport, MemoryLedger, Residual
from powerband.records.model import ModelSpec
from powerband.records.rounds import Goal, Objective
from powerband.records.slo import Slo, parse_slo
from powerband.records.units import percent
from powerband.records.value import Record
from powerband.records.workload import Workload
from powerband.simulate.scheduler import REFUSE_LONG

# "auto" offers nine tenths of what one request at a time can serve: naive settings queue for long, good ones need not.
AUTO_LOAD = 0.9
_FOUND_LATER = ("auto", "knee")  # rates that the machine sets, once something has run on it
_LAYERED = ("llamacpp", "transformers")  # put whole layers on each card: memory is shared, a token's time is not
_PREVIEW_REQUESTS = 2_000
_TRIALS_IN_A_BUDGET = 14.0
_SHORTEST_WINDOW_S, _LONGEST_WINDOW_S = 8.0, 60.0


class CaseRequest(Record):
    """What was asked, as text and numbers; stored with the session, so that --resume needs nothing else."""

    model: str
    engine: str
    settings: tuple[str, ...] = ()
    device: str = "auto"
    count: int = 1
    traffic: str | None = None
    requests: int | None = None
    scale_lengths: float | None = None
    scale_outputs: float | None = None
    scale_rate: str | None = None  # a factor, "auto" or "knee"
    window_s: float | None = None
    slo: str | None = None
    budget_s: float = 1200.0
    repeats: int = 3
    seed: int = 0
    numerics: bool = False  # turn knobs that alter the answers too; without a gate passed none is recommended
    calibrate: tuple[str, ...] = ()  # sessions and runs whose step times the search starts from
    ladder_from: str | None = None  # walk from this engine to ``engine``, one change a rung
    quantized: str | None = None  # of a ladder: a checkpoint of the same model in fewer bits
    goal: Goal = "speed"
    rivals: tuple[str, ...] = ()  # more engines to choose from: ENGINE, or ENGINE=MODEL


@dataclass(frozen=True, slots=True)
class Case:
    """A request made concrete; ``workload`` is what every trial sends."""

    request: CaseRequest
    engine: Engine
    model: ModelSpec | None
    device: DeviceSpec | None
    workload: Workload
    slo: Slo | None
    fixed: dict[str, Value]
    notes: tuple[str, ...] = field(default=())
    residual: Residual | None = None  # what a start of this engine showed beside its ledger
    _sizes: dict[bytes, MemoryLedger] = field(default_factory=dict, repr=False, compare=False)

    @property
    def naive(self) -> EngineConfig:
        """The "it runs" settings, with what the user fixed by --set, on all the cards that were asked for.

        Raises RequestError where the engine cannot share a model over so many.
        """
        config = self.complete(self.engine.naive(self.request.model, self.workload).replace(**self.fixed))
        if not self.engine.loads_model or self.engine.name in _LAYERED:
            return config
        return over_cards(config, self.request.count, instead="leave --count out: this engine takes one card")

    @property
    def goal(self) -> Goal:
        return self.request.goal

    @property
    def objective(self) -> Objective:
        if self.goal == "cards":
            return "attainment"
        return "output_tokens_per_s" if self.slo is None else "goodput_per_s"

    def cards_of(self, config: EngineConfig) -> int:
        """The cards that a config takes: those it says, or all where the engine does not say."""
        return cards_of(config) if config.engine in TENSOR_KNOB else max(1, self.request.count)

    def _ranks(self, config: EngineConfig) -> int:
        """The cards that share each layer, or the layers: what the ledger divides by, and the step time too."""
        return tensor_parallel(config) if config.engine in TENSOR_KNOB else self.request.count

    @property
    def ledger(self) -> MemoryLedger | None:
        return self.ledger_of(self.naive)

    @property
    def repeats(self) -> int:
        return self.request.repeats

    @property
    def cut_s(self) -> float:
        """When a trial is cut off. Open loop: a quarter after its arrivals end, at least 10 s, and late enough for the
        longest answer to arrive within the SLO; else three windows."""
        if self.workload.request_rate_per_s is None:
            return 3 * window_s(self.request)
        return self.workload.span_s + max(10.0, 0.25 * self.workload.span_s, self._promised_s)

    @property
    def _promised_s(self) -> float:
        """How long the longest answer may take by the SLO."""
        if self.slo is None or self.slo.tpot_s is None:
            return 0.0
        longest = max(request.output_tokens for request in self.workload.requests)
        return (self.slo.ttft_s or 0.0) + longest * self.slo.tpot_s

    def ledger_of(self, config: EngineConfig) -> MemoryLedger | None:
        if self.model is None or self.device is None or config.engine not in RULES:
            return None
        return compute_ledger(
            self.model,
            self.device,
            config,
            count=self._ranks(config),
            traffic=self.workload,
            residual=self.residual,
        )

    def size_of(self, config: EngineConfig) -> MemoryLedger | None:
        """The ledger without traffic and remedies, worked out once for all configs that agree on what bears on memory:
        a search asks for thousands."""
        if self.model is None or self.device is None or config.engine not in RULES:
            return None
        names = {knob.name for knob in MEMORY_KNOBS.get(config.engine, ())} or config.knobs.keys()
        key = msgspec.json.encode(sorted((name, value) for name, value in config.knobs.items() if name in names))
        if key not in self._sizes:
            self._sizes[key] = compute_ledger(
                self.model, self.device, config, count=self._ranks(config), residual=self.residual, remedies=False
            )
        return self._sizes[key]

    def reconciled(self, config: EngineConfig, report: EngineReport, version: str) -> "Case":
        """The case whose ledgers take into account what the engine said when it started with ``config``."""
        ledger = self.ledger_of(config)
        if ledger is None or self.model is None:
            return self
        found = reconcile(
            ledger,
            report,
            engine=config.engine,
            version=version,
            family=self.model.family,
            source="this session's start",
        )
        return replace(self, residual=combined(self.residual, found.residual), _sizes={})

    def complete(self, config: EngineConfig) -> EngineConfig:
        """Set the knobs that follow from others, unless the user fixed them."""
        return self.engine.complete(config, self.workload, frozenset(self.fixed))

    def refuses(self, config: EngineConfig) -> str | None:
        """Why a config cannot serve the workload: a rule of the engine's, or the memory."""
        reason = self.engine.refuses(config, self.workload)
        if reason is not None:
            return reason
        if 1 < self.request.count < cards_of(config):
            return f"it takes {cards_of(config)} cards, --count says {self.request.count}"
        ledger = self.size_of(config)
        return None if ledger is None or ledger.fits else f"does not fit into {ledger.device}"


def window_s(request: CaseRequest) -> float:
    """Seconds of arrivals in each trial: as given, else so that a budget holds about fourteen trials."""
    if request.window_s is not None:
        return request.window_s
    return min(max(request.budget_s / _TRIALS_IN_A_BUDGET, _SHORTEST_WINDOW_S), _LONGEST_WINDOW_S)


def prepare(request: CaseRequest) -> Case:
    """Read everything the request names; raises RequestError before anything is started. The rate is not set yet."""
    engine = get_engine(request.engine)
    if request.repeats < 2:
        raise RequestError(f"--repeats {request.repeats} is too few", hint="an interval needs at least 2 runs of each")
    fixed = parse_settings(list(request.settings), engine.knobs())
    if url := fixed.get("url"):
        base_url(str(url))
    model = read_model(request.model) if engine.loads_model else None
    named = read_device(request.device) if engine.loads_model or request.device != "auto" else None
    case = Case(
        request=request,
        engine=engine,
        model=model,
        device=named if engine.loads_model else None,
        workload=_workload(request, _factor(request.scale_rate), request.requests or _PREVIEW_REQUESTS),
        slo=parse_slo(request.slo) if request.slo is not None else None,
        fixed=fixed,
    )
    if case.goal == "cards" and case.slo is None:
        raise RequestError("the fewest cards for what?", hint="add --slo ttft=500ms,tpot=50ms")
    check_count(request.count)
    case = replace(case, notes=_too_long(case))
    _ = case.naive  # raises where so many cards cannot be shared
    return case if request.scale_rate in _FOUND_LATER else within_window(case, _factor(request.scale_rate))


def prepare_all(request: CaseRequest) -> tuple[Case, ...]:
    """A case for each engine named, the first one's first; each takes the settings that it knows. As ``prepare``."""
    if not request.rivals:
        return (prepare(request),)
    named = [(request.engine, request.model)]
    named += [(name, model or request.model) for name, _, model in (rival.partition("=") for rival in request.rivals)]
    names = tuple(name for name, _ in named)
    if len(set(names)) < len(names):
        raise RequestError(f"--engine {','.join(names)} names an engine twice", hint="name each once")
    for name in names:
        if not get_engine(name).restartable:
            raise RequestError(f"{name} is not started from here", hint="name engines whose settings can be changed")
    settings = split_settings(request.settings, names)
    return tuple(
        prepare(msgspec.structs.replace(request, engine=name, model=model, settings=tuple(settings[name])))
        for name, model in named
    )


def within_window(case: Case, factor: float) -> Case:
    """The case with arrivals scaled by ``factor`` and cut to the window; closed loops keep their request count."""
    workload = _workload(case.request, factor, case.request.requests or _PREVIEW_REQUESTS)
    if workload.request_rate_per_s is None:
        return replace(case, workload=workload)
    cut = workload.first(window_s(case.request))
    if len(cut.requests) < 2:
        raise RequestError(
            f"{window_s(case.request):.0f} s of this traffic hold {len(cut.requests)} request(s)",
            hint="raise --window, or speed arrivals up with --scale-rate 10 or --scale-rate auto",
        )
    scaling = "; ".join(filter(None, [workload.scaling, f"the first {window_s(case.request):.0f} s of arrivals"]))
    return replace(case, workload=msgspec.structs.replace(cut, scaling=scaling))


def offered_factor(case: Case, served_per_s: float) -> float:
    """By what to scale arrivals so that AUTO_LOAD times ``served_per_s`` is offered."""
    rate = case.workload.request_rate_per_s
    if rate is None:
        raise RequestError("--scale-rate auto needs arrivals", hint="leave it out for a closed loop or a burst")
    return AUTO_LOAD * served_per_s / rate


def _workload(request: CaseRequest, factor: float, requests: int) -> Workload:
    return build_workload(
        request.traffic,
        requests=requests,
        scale_lengths=request.scale_lengths,
        scale_outputs=request.scale_outputs,
        scale_rate=None if math.isclose(factor, 1.0) else factor,
        seed=request.seed,
    )


def _too_long(case: Case) -> tuple[str, ...]:
    """That some requests are beyond the model's context; RequestError where all are."""
    longest = 0 if case.model is None or case.engine.name not in REFUSE_LONG else case.model.context_tokens
    over = [one.input_tokens + one.output_tokens > longest for one in case.workload.requests]
    if not longest or not any(over):
        return ()
    what = f"longer than the model's context of {longest:,} tokens"
    if all(over):
        raise RequestError(f"every request is {what}", hint="shorten with --scale-lengths")
    return (
        f"{percent(sum(over) / len(over), 1)} of the traffic's requests are {what}: {case.engine.name} refuses them",
    )


def _factor(text: str | None) -> float:
    if text is None or text in _FOUND_LATER:
        return 1.0
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not (math.isfinite(factor) and factor > 0):
        raise RequestError(
            f"cannot read --scale-rate {text!r}", hint="write a factor above 0, such as 0.05, auto or knee"
        )
    return factor
