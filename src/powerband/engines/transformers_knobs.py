"""Transformers' settings: its own spelling where it has one (``attn_implementation``, ``prompt_lookup_num_tokens``)."""

from powerband.probes.host import physical_cores, usable_cores
from powerband.records.config import EngineConfig, Knob

BATCHING = ("none", "static", "continuous")
ATTENTION = ("auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
DTYPES = ("auto", "float32", "float16", "bfloat16")


def transformers_knobs() -> tuple[Knob, ...]:
    """Every setting that can be turned; ``naive`` is ``model.generate`` for one request after the other."""
    return (*_batching(), *_continuous(), *_execution(), *_others())


def _batching() -> tuple[Knob, ...]:
    return (
        Knob(
            name="batching", kind="choice", choices=BATCHING, naive="none", grid=("continuous", "static", "none"),
            help="one request at a time, padded batches that wait for their longest answer, or continuous batching",
            addresses=("no_batching", "static_batching", "queueing"),
        ),
        Knob(
            name="batch_size", kind="int", low=1, high=1024, naive=1, grid=(1, 4, 8, 16, 32),
            help="sequences of a static batch", addresses=("no_batching", "queueing"),
        ),
        Knob(
            name="batch_wait_ms", kind="float", low=0, high=60_000, naive=50.0,
            help="how long a static batch waits for more requests after its first",
        ),
        Knob(
            name="prompt_lookup_num_tokens", kind="int", low=0, high=64, naive=0, grid=(0, 3, 10),
            help="guess this many tokens from n-grams of the prompt and check them in one step (one request at a time)",
            addresses=("memory_bandwidth_bound", "launch_bound"),
        ),
    )  # fmt: skip


def _continuous() -> tuple[Knob, ...]:
    return (
        Knob(
            name="max_batch_tokens", kind="int", low=0, naive=0, grid=(0, 256, 512, 1024, 2048, 4096),
            help="continuous: tokens of one step (0: 512 on a CPU, else as transformers chooses)",
            addresses=("head_of_line_blocking", "compute_bound"),
        ),
        Knob(
            name="max_requests_per_batch", kind="int", low=0, naive=0, help="continuous: requests of one step (0: all)"
        ),
        Knob(name="num_blocks", kind="int", low=0, naive=0, help="continuous: blocks of the cache (0: by the memory)"),
        Knob(name="block_size", kind="int", low=0, naive=0, help="continuous: tokens of a cache block (0: default)"),
        Knob(
            name="max_memory_percent", kind="float", low=0, high=1, naive=0.0, addresses=("kv_pressure",),
            help="continuous: share of the memory for its cache (0: 0.1 on a CPU, else as transformers chooses)",
        ),
        Knob(
            name="cuda_graphs", kind="choice", choices=("auto", "on", "off"), naive="auto",
            help="continuous: replay captured steps on a card", addresses=("launch_bound",),
        ),
    )  # fmt: skip


def _execution() -> tuple[Knob, ...]:
    cores, physical = usable_cores(), physical_cores()
    counts = tuple(sorted({0, max(1, physical - 1), physical, cores}))
    return (
        Knob(
            name="attn_implementation", kind="choice", choices=ATTENTION, naive="auto", grid=("auto", "eager"),
            help="attention kernels; auto is sdpa where the model has it", numerics=True,
            addresses=("kernel_choice", "memory_bandwidth_bound"),
        ),
        Knob(
            name="dtype", kind="choice", choices=DTYPES, naive="auto", grid=("auto", "bfloat16"), numerics=True,
            help="of weights and activations; auto: bfloat16 on a card, float32 on a CPU",
            addresses=("memory_bandwidth_bound",),
        ),
        Knob(name="device", kind="text", naive="auto", help="cpu, cuda or cuda:1; auto: a card where there is one"),
        Knob(
            name="num_threads", kind="int", low=0, high=cores, naive=0, grid=counts,
            help="threads of a CPU's matrix products (0: as PyTorch chooses)",
            addresses=("compute_bound", "memory_bandwidth_bound"),
        ),
        Knob(
            name="tokenizer_threads", kind="int", low=0, high=64, naive=0, grid=(0, 1),
            help="threads that tokenise requests as they come; 0: in line, before the request is generated",
            addresses=("tokenizer_bound", "input_pipeline_bound"),
        ),
    )  # fmt: skip


def _others() -> tuple[Knob, ...]:
    return (
        Knob(
            name="load_format", kind="choice", choices=("auto", "dummy"), naive="auto",
            help="dummy: random weights from config.json alone, to measure speed without a checkpoint",
        ),
        Knob(name="max_length", kind="int", low=0, naive=0, help="longest prompt plus answer (0: as the model)"),
        Knob(name="port", kind="int", low=0, high=65535, naive=0, help="port to serve on; 0 takes a free one"),
    )  # fmt: skip


def refuse(config: EngineConfig, longest_tokens: int) -> str | None:
    """The rule that this config breaks, in words, or None; ``longest_tokens`` 0 skips the length."""
    knobs = config.knobs
    batching, size = knobs.get("batching", "none"), int(knobs.get("batch_size", 1))
    limit = int(knobs.get("max_length", 0))
    if 0 < limit < longest_tokens:
        return f"max_length={limit} is shorter than the longest request of {longest_tokens} tokens"
    if size > 1 and batching != "static":
        return f"batch_size={size} is of static batches, and batching is {batching}"
    if batching == "static" and size < 2:
        return "batching=static needs batch_size of 2 or more"
    if int(knobs.get("prompt_lookup_num_tokens", 0)) and batching != "none":
        return f"prompt lookup guesses for one request at a time, and batching is {batching}"
    return None
