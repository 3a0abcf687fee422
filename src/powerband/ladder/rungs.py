"""Which rungs a ladder has: from Transformers to the engine asked for, each with what it changes and removes."""

from collections.abc import Mapping
from dataclasses import dataclass

from powerband.engines.base import Engine, get_engine
from powerband.records.config import EngineConfig, Knob, Value
from powerband.records.errors import RequestError, unknown_name
from powerband.records.finding import Cause
from powerband.records.ladder import RungPlan
from powerband.records.workload import Workload

STARTS = ("transformers",)
# Limits that the last rung may choose, where an engine has them; the rest of its knobs stay as they are.
_LIMITS = {
    "vllm": ("max_num_batched_tokens", "max_num_seqs"),
    "sglang": ("chunked_prefill_size", "max_running_requests"),
    "tgi": ("max_batch_prefill_tokens",),
    "tensorrt-llm": ("max_num_tokens", "max_batch_size"),
    "openvino": ("max_num_batched_tokens", "max_num_seqs"),
    "llamacpp": ("n_parallel", "n_batch"),
}
# How an engine takes several sequences in one step, where it takes one unless told.
_SEATS = {"llamacpp": "n_parallel", "openvino": "max_num_seqs"}
_HOST: tuple[Cause, ...] = ("launch_bound", "scheduler_bound", "kernel_choice", "tokenizer_bound", "detokenize_bound")
_BATCH: tuple[Cause, ...] = ("no_batching", "static_batching", "queueing", "head_of_line_blocking")


@dataclass(frozen=True, slots=True)
class Ask:
    """What the ladder goes to: ``set_knobs`` were given for the engine of that name; ``quantized`` is a checkpoint of
    the same model in fewer bits ("" where the engine quantises while loading, or has no such thing)."""

    model: str
    engine: str
    workload: Workload
    concurrency: int
    on_card: bool
    quantized: str = ""
    set_knobs: Mapping[str, Mapping[str, Value]] | None = None


def plan_rungs(ask: Ask) -> tuple[RungPlan, ...]:
    """All rungs in order, the last one's knobs still to be chosen; raises RequestError for an engine not known."""
    if ask.engine in STARTS:
        raise unknown_name("engine at the top of a ladder", ask.engine, sorted(_LIMITS))
    target = get_engine(ask.engine)
    rungs = [*_transformers(ask), *_between(ask)]
    rungs += _vllm(ask, target) if ask.engine == "vllm" else _plain(ask, target, "engine")
    rungs += _quantised(ask, rungs[-1])
    return (*rungs, _tuned(target, rungs[-1], ask))


def _transformers(ask: Ask) -> list[RungPlan]:
    engine = get_engine("transformers")
    naive = _config(ask, engine)
    return [
        RungPlan(
            name="native Transformers", change="one request at a time, tokenised in line: what a first script does",
            config=naive,
        ),
        RungPlan(
            name="pipelined tokenising", change="tokenise the next requests while one is generated",
            config=naive.replace(tokenizer_threads=1), removes=("tokenizer_bound", "input_pipeline_bound"),
            left_out="decided by what tokenising costs on the rung below",
        ),
        RungPlan(
            name="continuous batching", change="Transformers' own continuous batching with a paged cache",
            config=_config(ask, engine, batching="continuous"), removes=_BATCH,
        ),
    ]  # fmt: skip


def _between(ask: Ask) -> list[RungPlan]:
    """On the way to OpenVINO, llama.cpp: the other engine that reads the same file."""
    if ask.engine != "openvino" or not ask.model.endswith(".gguf"):
        return []
    return _plain(ask, get_engine("llamacpp"), "engine: llama.cpp")


def _plain(ask: Ask, engine: Engine, name: str) -> list[RungPlan]:
    knobs: dict[str, Value] = {}
    if engine.name in _SEATS:
        knobs[_SEATS[engine.name]] = ask.concurrency
    config = _config(ask, engine, **knobs)
    seats = f", {ask.concurrency} sequences at once" if knobs else " as it comes"
    title = name if name != "engine" else f"engine: {engine.name}"
    return [RungPlan(name=title, change=f"{engine.name}{seats}", config=config, removes=(*_HOST, *_BATCH))]


def _vllm(ask: Ask, engine: Engine) -> list[RungPlan]:
    return [
        RungPlan(
            name="engine: vllm, eager", change="vLLM's scheduler, paged cache and attention kernels, without graphs",
            config=_config(ask, engine, enforce_eager=True), removes=(*_HOST, *_BATCH, "kv_pressure"),
        ),
        RungPlan(
            name="compile and graphs", change="vLLM as it comes: torch.compile and CUDA graphs",
            config=_config(ask, engine), removes=("launch_bound", "kernel_choice", "scheduler_bound"),
        ),
    ]  # fmt: skip


def _quantised(ask: Ask, below: RungPlan) -> list[RungPlan]:
    removes: tuple[Cause, ...] = ("memory_bandwidth_bound", "compute_bound", "kv_pressure")
    if ask.quantized:
        config = EngineConfig(engine=below.config.engine, model=ask.quantized, knobs=below.config.knobs)
        change = "the same model in fewer bits, from its own file"
    elif ask.engine == "vllm" and ask.on_card:
        config, change = below.config.replace(quantization="fp8"), "weights and activations of linear layers in fp8"
    else:
        why = "no checkpoint in fewer bits was given (--quantized), and this engine does not quantise while loading"
        return [RungPlan(name="quantised", change="fewer bits", config=below.config, gated=True, left_out=why)]
    scheme = "fp8" if not ask.quantized else ""
    return [RungPlan(name="quantised", change=change, config=config, removes=removes, gated=True, weights=scheme)]


def _tuned(target: Engine, below: RungPlan, ask: Ask) -> RungPlan:
    given = (ask.set_knobs or {}).get(target.name, {})
    by_name: dict[str, Knob] = {knob.name: knob for knob in target.knobs()}
    wanted = [name for name in _LIMITS.get(target.name, ()) if name in by_name and name not in given]
    return RungPlan(
        name="tuned limits",
        change="the limits of a step, as predicted from the rungs below",
        config=below.config,
        removes=("queueing", "head_of_line_blocking", "kv_pressure", "no_batching"),
        gated=below.gated and not below.left_out,
        tunes={name: by_name[name].grid for name in wanted},
        weights=below.weights,
        left_out="" if wanted else f"{target.name} has no limit that this ladder turns",
    )


def _config(ask: Ask, engine: Engine, **knobs: Value) -> EngineConfig:
    """The engine's naive settings with ``knobs`` and what was given for it, completed for the workload."""
    given = (ask.set_knobs or {}).get(engine.name, {})
    config = engine.naive(ask.model, ask.workload).replace(**{**knobs, **given})
    return engine.complete(config, ask.workload, frozenset(given))


def engines_of(engine: str, model: str) -> tuple[str, ...]:
    """The engines that a ladder to ``engine`` passes; RequestError where it cannot end there."""
    if engine in STARTS or engine not in _LIMITS:
        hint = f"a ladder ends at one of {', '.join(sorted(_LIMITS))}"
        raise RequestError(f"no ladder goes from transformers to {engine!r}", hint=hint)
    between = ("llamacpp",) if engine == "openvino" and model.endswith(".gguf") else ()
    return ("transformers", *between, engine)
