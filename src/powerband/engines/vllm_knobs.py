"""vLLM's settings in its own spelling: ranges, values worth trying on this machine, flags and environment variables."""

import functools
import json
import shlex
from collections.abc import Mapping

from powerband.probes.cards import read_cards
from powerband.probes.host import usable_cores
from powerband.records.config import EngineConfig, Knob, Value
from powerband.records.errors import RequestError
from powerband.records.units import GIB
from powerband.records.value import Record

KV_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla")
QUANTISATIONS = (
    "none", "fp8", "fp8_per_tensor", "fp8_per_block", "int8_per_channel_weight_only", "mxfp8", "mxfp4",
    "bitsandbytes", "awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "modelopt", "torchao",
)  # fmt: skip
LOAD_FORMATS = ("auto", "safetensors", "pt", "dummy", "runai_streamer", "sharded_state", "bitsandbytes", "gguf")
BACKENDS = ("auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "XFORMERS", "FLASHMLA", "CUTLASS_MLA")
GRAPH_MODES = ("auto", "NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
NGRAM = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}'

# Environment variables that bear on speed or on the start; the rest of the environment is inherited.
ENVIRONMENT = (
    "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
    "VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_CACHE_ROOT", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_LOGGING_LEVEL",
    "VLLM_WORKER_MULTIPROC_METHOD",
)  # fmt: skip
_NOT_FLAGS = frozenset({*ENVIRONMENT, "cudagraph_mode", "compilation_config"})


class Machine(Record):
    """What vLLM's own defaults depend on here: ``cards`` visible (0: the CPU backend), their smallest memory."""

    cards: int
    memory_bytes: int = 0
    name: str = ""
    cores: int = 1

    @property
    def large(self) -> bool:
        """Large cards get larger batches by default (EngineArgs.get_batch_defaults)."""
        return self.memory_bytes >= 70 * GIB and "a100" not in self.name.lower()

    @property
    def stock_seqs(self) -> int:
        """``max_num_seqs`` that ``vllm serve`` takes when not told."""
        return 128 if not self.cards else 1024 if self.large else 256

    @property
    def stock_tokens(self) -> int:
        """``max_num_batched_tokens`` that ``vllm serve`` takes when not told."""
        return 8192 if self.large else 2048


@functools.cache
def this_machine() -> Machine:
    """The cards that the driver shows, read once."""
    cards = read_cards()
    if not cards:
        return Machine(cards=0, cores=usable_cores())
    smallest = min(cards, key=lambda card: card.memory_bytes)
    return Machine(cards=len(cards), memory_bytes=smallest.memory_bytes, name=smallest.name, cores=usable_cores())


def vllm_knobs(machine: Machine | None = None) -> tuple[Knob, ...]:
    """Every setting that can be turned; ``naive`` is what ``vllm serve`` does when not told."""
    here = this_machine() if machine is None else machine
    return (*_batching(here), *_cache(here), *_execution(here), *_parallel(here), *_model(), *_environment())


def _batching(here: Machine) -> tuple[Knob, ...]:
    seqs = (32, 64, 128, 256, 512, 1024) if here.cards else (4, 8, 16, 32, 64, 128)
    tokens = (512, 1024, 2048, 4096, 8192, 16384) if here.cards else (256, 512, 1024, 2048, 4096)
    return (
        Knob(
            name="max_num_seqs", kind="int", low=1, high=16384, naive=here.stock_seqs, grid=seqs,
            help="sequences in one step", addresses=("no_batching", "queueing", "kv_pressure"),
        ),
        Knob(
            name="max_num_batched_tokens", kind="int", low=1, naive=here.stock_tokens, grid=tokens,
            help="tokens in one step: bounds how long a prompt can hold up the answers beside it",
            addresses=("head_of_line_blocking", "compute_bound", "launch_bound"),
        ),
        Knob(
            name="enable_chunked_prefill", kind="bool", naive=True, addresses=("head_of_line_blocking",),
            help="cut long prompts into parts of a step; off, a step must hold the longest prompt",
        ),
        Knob(
            name="long_prefill_token_threshold", kind="int", low=0, naive=0, grid=(0, 512, 2048),
            help="most tokens of one prompt in one step (0: no such limit)", addresses=("head_of_line_blocking",),
        ),
        Knob(
            name="scheduling_policy", kind="choice", choices=("fcfs", "priority"), naive="fcfs",
            help="order in which waiting requests are taken",
        ),
        Knob(
            name="async_scheduling", kind="bool", naive=True, grid=(True, False), addresses=("scheduler_bound",),
            help="schedule the next step while the device works on this one",
        ),
        Knob(
            name="stream_interval", kind="int", low=1, naive=1, addresses=("detokenize_bound",),
            help="tokens sent together: fewer messages, coarser streams",
        ),
    )  # fmt: skip


def _cache(here: Machine) -> tuple[Knob, ...]:
    return (
        Knob(
            name="enable_prefix_caching", kind="bool", naive=True, grid=(True, False),
            help="keep and reuse the cache of equal prompt beginnings", addresses=("prefix_cache_miss",),
        ),
        Knob(
            name="kv_cache_dtype", kind="choice", choices=KV_DTYPES, naive="auto", grid=("auto", "fp8"), numerics=True,
            help="how cached values are stored", addresses=("kv_pressure", "memory_bandwidth_bound"),
        ),
        Knob(
            name="gpu_memory_utilization", kind="float", low=0.01, high=1.0, naive=0.92,
            grid=(0.92, 0.95) if here.cards else (), addresses=("kv_pressure",),
            help="share of the device that vLLM may use; of the host's memory on the CPU backend (0.9 before 0.26)",
        ),
        Knob(name="kv_cache_memory_bytes", kind="int", low=0, naive=0, help="bytes of the cache (0: what is left)"),
        Knob(name="block_size", kind="int", low=1, naive=16 if here.cards else 128, help="tokens in a cache block"),
        Knob(
            name="num_gpu_blocks_override", kind="int", low=0, naive=0,
            help="blocks of the cache, to test a full one (0: as many as fit)",
        ),
        Knob(name="cpu_offload_gb", kind="float", low=0, naive=0.0, help="GiB of weights kept in the host's memory"),
        Knob(
            name="max_model_len", kind="int", low=0, naive=0, addresses=("kv_pressure",),
            help="longest sequence, prompt and answer (0: as the model)",
        ),
    )  # fmt: skip


def _execution(here: Machine) -> tuple[Knob, ...]:
    return (
        Knob(
            name="enforce_eager", kind="bool", naive=False, grid=(False, True),
            help="no torch.compile, no CUDA graphs: a quicker start and slower steps", addresses=("launch_bound",),
        ),
        Knob(
            name="cudagraph_mode", kind="choice", choices=GRAPH_MODES, naive="auto",
            grid=("auto", "FULL_DECODE_ONLY") if here.cards else (),
            help="which steps are replayed as graphs (a field of --compilation-config)", addresses=("launch_bound",),
        ),
        Knob(
            name="max_cudagraph_capture_size", kind="int", low=0, naive=0, addresses=("launch_bound",),
            help="largest batch captured as a graph (0: twice max_num_seqs, at most 512)",
        ),
        Knob(
            name="compilation_config", kind="text", naive="", help="further fields of --compilation-config, as JSON",
        ),
        Knob(
            name="attention_backend", kind="choice", choices=BACKENDS, naive="auto",
            grid=("auto", "FLASHINFER") if here.cards else (), addresses=("kernel_choice",), numerics=True,
            help="attention kernels (before 0.13 the variable VLLM_ATTENTION_BACKEND)",
        ),
        Knob(
            name="quantization", kind="choice", choices=QUANTISATIONS, naive="none", grid=("none", "fp8"),
            help="how weights are quantised while loading, or how the checkpoint says they are", numerics=True,
            addresses=("memory_bandwidth_bound", "compute_bound", "kv_pressure"),
        ),
        Knob(
            name="speculative_config", kind="text", naive="", addresses=("memory_bandwidth_bound",),
            help=f"speculative decoding as JSON, such as {NGRAM}; what it brings depends on the text",
        ),
    )  # fmt: skip


def _parallel(here: Machine) -> tuple[Knob, ...]:
    ways = tuple(count for count in (1, 2, 4, 8) if count <= max(here.cards, 1))
    many = ways if len(ways) > 1 else ()
    servers = tuple(count for count in (1, 2, 4) if count == 1 or 4 * count <= here.cores)
    return (
        Knob(
            name="tensor_parallel_size", kind="int", low=1, naive=1, grid=many, help="cards that share each layer",
            addresses=("memory_bandwidth_bound", "compute_bound", "kv_pressure", "communication_bound"),
        ),
        Knob(
            name="data_parallel_size", kind="int", low=1, naive=1, grid=many, help="copies of the model",
            addresses=("communication_bound", "queueing", "compute_bound"),
        ),
        Knob(
            name="pipeline_parallel_size", kind="int", low=1, naive=1, addresses=("kv_pressure",),
            help="cards that share the layers between them",
        ),
        Knob(name="enable_expert_parallel", kind="bool", naive=False, help="spread whole experts over the ranks"),
        Knob(
            name="api_server_count", kind="int", low=1, naive=1, grid=servers if len(servers) > 1 else (),
            help="processes that serve HTTP, tokenise and detokenise (not with python -m, which starts one)",
            addresses=("tokenizer_bound", "detokenize_bound", "scheduler_bound"),
        ),
    )  # fmt: skip


def _model() -> tuple[Knob, ...]:
    dtypes = ("auto", "bfloat16", "float16", "float32")
    return (
        Knob(name="dtype", kind="choice", choices=dtypes, naive="auto", numerics=True, help="of weights, activations"),
        Knob(
            name="load_format", kind="choice", choices=LOAD_FORMATS, naive="auto", numerics=True,
            help="how weights are read; dummy: random ones, to measure speed and memory without a checkpoint",
        ),
        Knob(name="tokenizer", kind="text", naive="", help="a tokenizer other than the model's"),
        Knob(name="served_model_name", kind="text", naive="", help="the name requests use"),
        Knob(name="trust_remote_code", kind="bool", naive=False, help="run code that comes with the model"),
        Knob(name="hf_overrides", kind="text", naive="", help="fields of config.json to replace, as JSON"),
        Knob(name="profiler_config", kind="text", naive="", help="profiler and its folder, as JSON (0.13 or later)"),
        Knob(name="port", kind="int", low=0, high=65535, naive=0, help="port to serve on; 0 takes a free one"),
    )  # fmt: skip


def _environment() -> tuple[Knob, ...]:
    return (
        Knob(
            name="VLLM_CPU_KVCACHE_SPACE", kind="int", low=0, naive=0,
            help="CPU backend: GiB of the cache (0: by gpu_memory_utilization)",
        ),
        Knob(name="VLLM_CPU_OMP_THREADS_BIND", kind="text", naive="", help="CPU backend: cores, as 0-1; or nobind"),
        Knob(name="OMP_NUM_THREADS", kind="int", low=0, naive=0, help="threads of a process (0: not set)"),
        Knob(name="CUDA_VISIBLE_DEVICES", kind="text", naive="", help="cards to use, such as 0,1 (empty: inherited)"),
        Knob(
            name="VLLM_ENGINE_READY_TIMEOUT_S", kind="int", low=1, naive=600,
            help="how long a start may take; powerband waits as long",
        ),
        Knob(name="VLLM_CACHE_ROOT", kind="text", naive="", help="where compiled code is kept for the next start"),
        Knob(
            name="VLLM_USE_V2_MODEL_RUNNER", kind="choice", choices=("auto", "0", "1"), naive="auto",
            help="which model runner (0.26: V2 for dense models)",
        ),
        Knob(
            name="VLLM_WORKER_MULTIPROC_METHOD", kind="choice", choices=("auto", "spawn", "fork"), naive="auto",
            help="how the engine's core is made; fork starts sooner, spawn is what vllm serve takes",
        ),
        Knob(
            name="VLLM_LOGGING_LEVEL", kind="choice", choices=("DEBUG", "INFO", "WARNING"), naive="INFO",
            help="DEBUG tells more of what was allocated",
        ),
    )  # fmt: skip


def to_flags(knobs: Mapping[str, Value]) -> list[str]:
    """The knobs as flags of ``vllm serve``; those at "auto", "none", "" or a 0 that means unset give none."""
    flags: list[str] = []
    for name in sorted(knobs):
        value = knobs[name]
        if name in _NOT_FLAGS or _unset(name, value):
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            flags += [flag, str(value)]
    compilation = _compilation(knobs)
    return [*flags, "--compilation-config", compilation] if compilation else flags


# A 0 of these is no size: the knob is left to vLLM.
_ZERO_IS_UNSET = frozenset(
    {"max_model_len", "kv_cache_memory_bytes", "num_gpu_blocks_override", "max_cudagraph_capture_size", "port"}
)


def _unset(name: str, value: Value) -> bool:
    if isinstance(value, bool):
        return False
    if name in _ZERO_IS_UNSET:
        return value == 0
    return value == "" or (name == "quantization" and value == "none") or (value == "auto" and name in _AUTO)


# "auto" is a word of vLLM's for dtype, kv_cache_dtype and load_format; for these it stands for leaving the flag out.
_AUTO = frozenset({"attention_backend"})


def _compilation(knobs: Mapping[str, Value]) -> str:
    """The --compilation-config that the two knobs give together, as compact JSON."""
    text = str(knobs.get("compilation_config", ""))
    try:
        fields = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise RequestError(f"compilation_config={text!r} is not JSON: {error}", hint='such as {"level":3}') from None
    mode = knobs.get("cudagraph_mode", "auto")
    if mode != "auto":
        fields["cudagraph_mode"] = mode
    return json.dumps(fields, separators=(",", ":")) if fields else ""


def environment_of(knobs: Mapping[str, Value]) -> dict[str, str]:
    """Variables that the knobs set; 0, "" and "auto" leave one as it is inherited."""
    return {name: str(knobs[name]) for name in ENVIRONMENT if name in knobs and knobs[name] not in (0, "", "auto")}


def start_command_of(config: EngineConfig) -> str:
    """The ``vllm serve`` command line of a config, with its environment in front."""
    words = [f"{name}={shlex.quote(value)}" for name, value in environment_of(config.knobs).items()]
    return " ".join([*words, shlex.join(["vllm", "serve", config.model, *to_flags(config.knobs)])])
