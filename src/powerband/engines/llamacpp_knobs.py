"""llama.cpp's settings in its own spelling: ranges, values worth trying, and the llama-server flag of each."""

import shlex

from powerband.probes.host import physical_cores, usable_cores
from powerband.records.config import EngineConfig, Knob, Value

CONTEXT_STEP_TOKENS = 256  # llama.cpp rounds a slot's context up to this (GGML_PAD in llama-context.cpp)
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
SPEC_TYPES = ("none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
# Environment variables of the OpenMP runtime that llama.cpp's CPU threads run on; their own spelling is upper case.
ENVIRONMENT = ("OMP_WAIT_POLICY", "OMP_PROC_BIND", "GOMP_SPINCOUNT")

_FLAGS = {
    "n_parallel": "--parallel",
    "n_ctx": "--ctx-size",
    "n_batch": "--batch-size",
    "n_ubatch": "--ubatch-size",
    "n_threads": "--threads",
    "n_threads_batch": "--threads-batch",
    "n_threads_http": "--threads-http",
    "n_gpu_layers": "--n-gpu-layers",
    "flash_attn": "--flash-attn",
    "cache_type_k": "--cache-type-k",
    "cache_type_v": "--cache-type-v",
    "cache_ram_mib": "--cache-ram",
    "poll": "--poll",
    "cpu_mask": "--cpu-mask",
    "cpu_strict": "--cpu-strict",
    "spec_type": "--spec-type",
    "chat_template": "--chat-template",
    "port": "--port",
}
_SWITCHES = {
    "cont_batching": ("--cont-batching", "--no-cont-batching"),
    "cache_prompt": ("--cache-prompt", "--no-cache-prompt"),
    "kv_unified": ("--kv-unified", "--no-kv-unified"),
}


def llamacpp_knobs() -> tuple[Knob, ...]:
    """Every setting that can be turned; ``naive`` is llama.cpp's default, or one slot where that is the point."""
    return (*_batching(), *_threads(), *_cache(), *_others())


def _batching() -> tuple[Knob, ...]:
    return (
        Knob(
            name="n_parallel", kind="int", low=1, high=256, naive=1, grid=(1, 2, 4, 8, 16, 32),
            help="slots: sequences decoded together in one step", addresses=("no_batching", "queueing"),
        ),
        Knob(
            name="n_batch", kind="int", low=32, high=16384, naive=2048, grid=(128, 256, 512, 2048),
            help="most tokens handed to one decode call: bounds how much prompt one step of the server takes",
            addresses=("head_of_line_blocking",),
        ),
        Knob(
            name="n_ubatch", kind="int", low=32, high=16384, naive=512, grid=(128, 256, 512, 1024),
            help="most tokens computed at once: prompt speed against activation memory",
            addresses=("head_of_line_blocking", "compute_bound"),
        ),
        Knob(
            name="cont_batching", kind="bool", naive=True, help="let requests join and leave the batch at every step",
            addresses=("static_batching",),
        ),
    )  # fmt: skip


def _threads() -> tuple[Knob, ...]:
    cores, physical = usable_cores(), physical_cores()
    counts = tuple(sorted({max(1, physical // 2), max(1, physical - 1), physical, cores}))
    return (
        Knob(
            name="n_threads", kind="int", low=1, high=cores, naive=physical, grid=counts,
            help="threads of a decode step; they spin at barriers, so each needs a core of its own",
            addresses=("memory_bandwidth_bound", "compute_bound"),
        ),
        Knob(
            name="n_threads_batch", kind="int", low=1, high=cores, naive=physical, grid=counts,
            help="threads of prompt processing; n_threads where not set", addresses=("compute_bound",),
        ),
        Knob(
            name="n_threads_http", kind="int", low=1, high=256, naive=max(cores - 1, 2),
            help="threads that serve HTTP (the server never uses fewer than n_parallel + 4)",
        ),
        Knob(
            name="poll", kind="int", low=0, high=100, naive=50,
            help="how long idle threads spin before they sleep; no effect in builds on OpenMP",
        ),
        Knob(name="cpu_mask", kind="text", naive="", help="cores for the threads, as a hexadecimal mask such as 0x3"),
        Knob(name="cpu_strict", kind="bool", naive=False, help="one core of cpu_mask for each thread"),
        Knob(
            name="OMP_WAIT_POLICY", kind="choice", choices=("active", "passive"), naive="active",
            help="OpenMP builds: threads spin at barriers (active) or sleep (passive), which neighbours need",
        ),
        Knob(
            name="OMP_PROC_BIND", kind="choice", choices=("false", "true", "close", "spread"), naive="false",
            help="OpenMP builds: keep each thread on its core",
        ),
        Knob(name="GOMP_SPINCOUNT", kind="int", low=0, naive=300000, help="libgomp: turns of the spin before sleeping"),
    )  # fmt: skip


def _cache() -> tuple[Knob, ...]:
    return (
        Knob(
            name="n_ctx", kind="int", low=0, naive=0,
            help="context of all slots together; n_ctx / n_parallel is what one request can hold (0: as the model)",
            addresses=("kv_pressure",),
        ),
        Knob(
            name="kv_unified", kind="bool", naive=False, addresses=("kv_pressure",),
            help="one KV pool that all slots share, instead of a fixed part for each",
        ),
        Knob(
            name="flash_attn", kind="choice", choices=("auto", "on", "off"), naive="auto", grid=("auto", "on", "off"),
            help="fused attention", addresses=("memory_bandwidth_bound", "kernel_choice"), numerics=True,
        ),
        Knob(
            name="cache_type_k", kind="choice", choices=KV_TYPES, naive="f16", grid=("f16", "q8_0", "q4_0"),
            help="type of the K cache", addresses=("kv_pressure", "memory_bandwidth_bound"), numerics=True,
        ),
        Knob(
            name="cache_type_v", kind="choice", choices=KV_TYPES, naive="f16", grid=("f16", "q8_0", "q4_0"),
            help="type of the V cache; a quantised one needs flash attention",
            addresses=("kv_pressure", "memory_bandwidth_bound"), numerics=True,
        ),
        Knob(
            name="cache_prompt", kind="bool", naive=True, addresses=("prefix_cache_miss",),
            help="reuse the part of a prompt that a slot has computed before",
        ),
        Knob(
            name="cache_ram_mib", kind="int", low=-1, naive=8192, grid=(8192, 0), addresses=("prefix_cache_miss",),
            help="host memory that keeps the state of earlier prompts; 0: none, -1: no limit",
        ),
    )  # fmt: skip


def _others() -> tuple[Knob, ...]:
    return (
        Knob(
            name="spec_type", kind="choice", choices=SPEC_TYPES, naive="none", grid=("none", "ngram-simple"),
            help="speculation from n-grams of the text so far, without a draft model",
            addresses=("memory_bandwidth_bound",),
        ),
        Knob(
            name="chat_template", kind="text", naive="", numerics=True,
            help="how a conversation becomes a prompt: a built-in template's name; the model's own where not set",
        ),
        Knob(name="n_gpu_layers", kind="int", low=-1, naive=-1, help="layers kept on the GPU; -1: as many as fit"),
        Knob(name="port", kind="int", low=0, high=65535, naive=0, help="port to serve on; 0 takes a free one"),
    )  # fmt: skip


def to_flags(knobs: dict[str, Value]) -> list[str]:
    """The knobs as flags of llama-server, in a fixed order; knobs that are not set give none."""
    flags: list[str] = []
    for name, flag in _FLAGS.items():
        if name in knobs and knobs[name] != "":
            value = knobs[name]
            flags += [flag, str(int(value)) if isinstance(value, bool) else str(value)]
    for name, (on, off) in _SWITCHES.items():
        if name in knobs:
            flags.append(on if knobs[name] else off)
    if knobs.get("chat_template"):
        flags.insert(0, "--no-jinja")  # with jinja, the default, a name would be taken for a template's text
    return flags


def environment_of(knobs: dict[str, Value]) -> dict[str, str]:
    return {name: str(knobs[name]) for name in ENVIRONMENT if name in knobs}


def start_command_of(config: EngineConfig) -> str:
    """The llama-server command line of a config, with its environment in front."""
    knobs = {name: value for name, value in config.knobs.items() if not (name == "port" and value == 0)}
    words = [f"{name}={value}" for name, value in environment_of(knobs).items()]
    return shlex.join([*words, "llama-server", "--model", config.model, *to_flags(knobs), "--metrics"])
