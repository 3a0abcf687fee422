"""OpenVINO GenAI's settings: fields of its SchedulerConfig in lower case, properties of the device in upper case."""

from powerband.probes.host import physical_cores, usable_cores
from powerband.records.config import EngineConfig, Knob

SCHEDULER = (
    "max_num_seqs", "max_num_batched_tokens", "cache_size", "num_kv_blocks", "dynamic_split_fuse",
    "enable_prefix_caching",
)  # fmt: skip
PROPERTIES = (
    "INFERENCE_NUM_THREADS", "KV_CACHE_PRECISION", "INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    "ENABLE_CPU_PINNING",
)  # fmt: skip
AUTO = "auto"


def openvino_knobs() -> tuple[Knob, ...]:
    """Every setting that can be turned; ``naive`` is one sequence at a time."""
    return (*_scheduler(), *_device(), *_others())


def _scheduler() -> tuple[Knob, ...]:
    return (
        Knob(
            name="max_num_seqs", kind="int", low=1, high=4096, naive=1, grid=(1, 2, 4, 8, 16, 32),
            help="sequences in one step", addresses=("no_batching", "queueing"),
        ),
        Knob(
            name="max_num_batched_tokens", kind="int", low=1, naive=256, grid=(128, 256, 512, 1024, 2048),
            help="tokens in one step: bounds how long a prompt can hold up the answers beside it",
            addresses=("head_of_line_blocking", "compute_bound"),
        ),
        Knob(
            name="cache_size", kind="int", low=0, naive=0, addresses=("kv_pressure",),
            help="GB of the KV cache (0: it grows as needed)",
        ),
        Knob(name="num_kv_blocks", kind="int", low=0, naive=0, help="blocks of the KV cache (0: not set)"),
        Knob(
            name="dynamic_split_fuse", kind="bool", naive=True, grid=(True, False),
            addresses=("head_of_line_blocking",),
            help="cut prompts into parts of a step; off, a step must hold the longest prompt",
        ),
        Knob(
            name="enable_prefix_caching", kind="bool", naive=False, grid=(False, True),
            help="keep and reuse the cache of equal prompt beginnings", addresses=("prefix_cache_miss",),
        ),
    )  # fmt: skip


def _device() -> tuple[Knob, ...]:
    cores, physical = usable_cores(), physical_cores()
    counts = tuple(sorted({0, max(1, physical - 1), physical, cores}))
    return (
        Knob(
            name="device", kind="choice", choices=("CPU", "GPU"), naive="CPU", help="GPU is Intel's, integrated or not"
        ),
        Knob(
            name="INFERENCE_NUM_THREADS", kind="int", low=0, high=cores, naive=0, grid=counts,
            help="threads of a step (0: as OpenVINO chooses)", addresses=("compute_bound", "memory_bandwidth_bound"),
        ),
        Knob(
            name="KV_CACHE_PRECISION", kind="choice", choices=(AUTO, "u8", "f16", "bf16", "f32"), naive=AUTO,
            grid=(AUTO, "u8", "f16"), numerics=True, addresses=("kv_pressure", "memory_bandwidth_bound"),
            help="how cached values are stored; auto is u8 on most CPUs",
        ),
        Knob(
            name="INFERENCE_PRECISION_HINT", kind="choice", choices=(AUTO, "f32", "bf16", "f16"), naive=AUTO,
            numerics=True, addresses=("compute_bound",), help="type that matrix products compute in",
        ),
        Knob(
            name="DYNAMIC_QUANTIZATION_GROUP_SIZE", kind="choice", choices=(AUTO, "0", "32", "64", "128"), naive=AUTO,
            numerics=True, addresses=("compute_bound",),
            help="quantise activations in groups of this many values, where weights are compressed (0: do not)",
        ),
        Knob(name="ENABLE_CPU_PINNING", kind="bool", naive=True, help="keep each thread on its core"),
    )  # fmt: skip


def _others() -> tuple[Knob, ...]:
    return (
        Knob(
            name="prompt_lookup_num_tokens", kind="int", low=0, high=64, naive=0, grid=(0, 4),
            help="guess this many tokens from n-grams of the prompt and check them in one step",
            addresses=("memory_bandwidth_bound",),
        ),
        Knob(
            name="tokenizer_threads", kind="int", low=0, high=64, naive=0,
            help="threads that tokenise requests as they come; 0: between two steps",
            addresses=("tokenizer_bound", "input_pipeline_bound"),
        ),
        Knob(name="port", kind="int", low=0, high=65535, naive=0, help="port to serve on; 0 takes a free one"),
    )  # fmt: skip


def refuse(config: EngineConfig, longest_tokens: int) -> str | None:
    """The rule that this config breaks, in words, or None; ``longest_tokens`` 0 skips the length."""
    knobs = config.knobs
    seqs, tokens = int(knobs.get("max_num_seqs", 1)), int(knobs.get("max_num_batched_tokens", 256))
    if seqs > tokens:
        return f"max_num_seqs={seqs} is larger than max_num_batched_tokens={tokens}"
    if knobs.get("dynamic_split_fuse") is False and tokens < longest_tokens:
        return f"without dynamic_split_fuse a step of {tokens} tokens cannot hold a sequence of {longest_tokens}"
    if int(knobs.get("cache_size", 0)) and int(knobs.get("num_kv_blocks", 0)):
        return "cache_size and num_kv_blocks both set the size of the cache: give one"
    return None
