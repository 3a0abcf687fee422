"""SGLang's settings in its own spelling: ranges, values worth trying, and the flags that go their own way."""

from powerband.records.config import Knob

KV_DTYPES = ("auto", "bf16", "fp8_e4m3", "fp8_e5m2")
QUANTISATIONS = (
    "none", "fp8", "w8a8_int8", "w8a8_fp8", "awq", "awq_marlin", "gptq", "gptq_marlin", "bitsandbytes",
    "compressed-tensors", "modelopt",
)  # fmt: skip
ATTENTION = ("auto", "flashinfer", "fa3", "fa4", "triton", "torch_native", "flex_attention", "trtllm_mha")
SAMPLING = ("auto", "flashinfer", "pytorch")
POLICIES = ("lpm", "fcfs", "dfs-weight", "lof", "random")
SPECULATION = ("none", "NGRAM", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
ENVIRONMENT = ("CUDA_VISIBLE_DEVICES",)


def sglang_knobs() -> tuple[Knob, ...]:
    """Every setting that can be turned; ``naive`` is SGLang's default on a card of 80 GB and more."""
    return (*_batching(), *_cache(), *_execution(), *_parallel(), *_model())


def _batching() -> tuple[Knob, ...]:
    return (
        Knob(
            name="max_running_requests", kind="int", low=0, high=16384, naive=0, grid=(64, 128, 256, 512, 1024),
            help="requests decoded together; 0: as many as the cache holds",
            addresses=("no_batching", "queueing", "kv_pressure"),
        ),
        Knob(
            name="chunked_prefill_size", kind="int", low=-1, high=1 << 20, naive=8192, grid=(2048, 4096, 8192, 16384),
            help="prompt tokens of one prefill chunk; -1: prompts are not cut",
            addresses=("head_of_line_blocking", "compute_bound"),
        ),
        Knob(
            name="max_prefill_tokens", kind="int", low=1, high=1 << 20, naive=16384,
            help="prompt tokens of one prefill batch, where chunks do not bound it",
        ),
        Knob(
            name="schedule_policy", kind="choice", choices=POLICIES, naive="fcfs", grid=("fcfs", "lpm"),
            help="who is let in first: fcfs the oldest, lpm the longest cached prefix, lof the longest answer",
            addresses=("queueing", "prefix_cache_miss"),
        ),
        Knob(
            name="schedule_conservativeness", kind="float", low=0.0, high=4.0, naive=1.0, grid=(0.3, 1.0),
            help="room kept for the answers of running requests; less lets more in, and retracts more",
            addresses=("kv_pressure", "queueing"),
        ),
        Knob(
            name="enable_mixed_chunk", kind="bool", naive=False, grid=(False, True),
            help="decode in the steps that hold a prefill chunk", addresses=("head_of_line_blocking",),
        ),
        Knob(
            name="num_continuous_decode_steps", kind="int", low=1, high=64, naive=1, grid=(1, 4),
            help="decode steps run before the scheduler is asked again", addresses=("scheduler_bound",),
        ),
        Knob(
            name="tokenizer_worker_num", kind="int", low=1, high=64, naive=1, grid=(1, 4),
            help="processes that tokenise requests", addresses=("tokenizer_bound", "input_pipeline_bound"),
        ),
        Knob(
            name="stream_interval", kind="int", low=1, high=64, naive=1, grid=(1, 4),
            help="tokens between two writes of a stream", addresses=("detokenize_bound",),
        ),
    )  # fmt: skip


def _cache() -> tuple[Knob, ...]:
    return (
        Knob(
            name="mem_fraction_static", kind="float", low=0.05, high=0.99, naive=0.88, grid=(0.8, 0.88, 0.92),
            help="share of the free memory for weights and cache", addresses=("kv_pressure",),
        ),
        Knob(
            name="context_length", kind="int", low=0, naive=0, help="longest sequence; 0: the model's context",
            addresses=("kv_pressure",),
        ),
        Knob(
            name="max_total_tokens", kind="int", low=0, naive=0, help="tokens of the cache; 0: as many as fit",
            addresses=("kv_pressure",),
        ),
        Knob(
            name="kv_cache_dtype", kind="choice", choices=KV_DTYPES, naive="auto", grid=("auto", "fp8_e4m3"),
            help="how cached values are stored", addresses=("kv_pressure", "memory_bandwidth_bound"), numerics=True,
        ),
        Knob(
            name="disable_radix_cache", kind="bool", naive=False, grid=(False, True),
            help="forget the cache of finished prompts", addresses=("prefix_cache_miss",),
        ),
        Knob(name="page_size", kind="int", low=0, high=256, naive=0, help="tokens in a cache page; 0: as the kernels"),
    )  # fmt: skip


def _execution() -> tuple[Knob, ...]:
    return (
        Knob(
            name="attention_backend", kind="choice", choices=ATTENTION, naive="auto",
            grid=("auto", "flashinfer", "fa3", "triton"), help="attention kernels", numerics=True,
            addresses=("kernel_choice", "memory_bandwidth_bound"),
        ),
        Knob(
            name="sampling_backend", kind="choice", choices=SAMPLING, naive="auto", help="sampling kernels",
            addresses=("kernel_choice",),
        ),
        Knob(
            name="disable_cuda_graph", kind="bool", naive=False, help="launch every kernel of a step by itself",
            addresses=("launch_bound",),
        ),
        Knob(
            name="cuda_graph_max_bs_decode", kind="int", low=0, high=4096, naive=0, grid=(160, 256, 512),
            help="largest batch with a captured graph; 0: by the card's size (up to 0.5.5: cuda_graph_max_bs)",
            addresses=("launch_bound",),
        ),
        Knob(
            name="enable_torch_compile", kind="bool", naive=False, grid=(False, True),
            help="compile the model for small batches", addresses=("launch_bound", "kernel_choice"),
        ),
        Knob(
            name="disable_overlap_schedule", kind="bool", naive=False,
            help="schedule a step only when the last has ended", addresses=("scheduler_bound",),
        ),
        Knob(
            name="disable_custom_all_reduce", kind="bool", naive=False,
            help="all-reduce through NCCL alone", addresses=("communication_bound",),
        ),
        Knob(
            name="speculative_algorithm", kind="choice", choices=SPECULATION, naive="none", grid=("none", "NGRAM"),
            help="guess tokens: NGRAM from the text so far, the others by a draft model",
            addresses=("memory_bandwidth_bound", "launch_bound"),
        ),
        Knob(name="speculative_draft_model_path", kind="text", naive="", help="the draft model"),
        Knob(
            name="speculative_num_draft_tokens", kind="int", low=0, high=64, naive=0,
            help="tokens guessed at each step; 0: the algorithm's own",
        ),
    )  # fmt: skip


def _parallel() -> tuple[Knob, ...]:
    return (
        Knob(
            name="tp_size", kind="int", low=1, high=64, naive=1, grid=(1, 2, 4, 8),
            help="cards that share each layer", addresses=("communication_bound", "memory_bandwidth_bound"),
        ),
        Knob(
            name="dp_size", kind="int", low=1, high=64, naive=1, grid=(1, 2, 4, 8), help="copies of the model",
            addresses=("queueing", "communication_bound"),
        ),
        Knob(
            name="pp_size", kind="int", low=1, high=64, naive=1, help="cards that share the layers between them",
            addresses=("communication_bound",),
        ),
        Knob(
            name="ep_size", kind="int", low=1, high=64, naive=1, help="cards that share the experts",
            addresses=("communication_bound",),
        ),
        Knob(
            name="enable_dp_attention", kind="bool", naive=False, grid=(False, True),
            help="the tensor-parallel cards attend for requests of their own (dp_size of them)",
            addresses=("communication_bound", "kv_pressure"),
        ),
        Knob(name="CUDA_VISIBLE_DEVICES", kind="text", naive="", help="the cards to use"),
    )  # fmt: skip


def _model() -> tuple[Knob, ...]:
    return (
        Knob(
            name="quantization", kind="choice", choices=QUANTISATIONS, naive="none", grid=("none", "fp8"),
            help="how weights are quantised", addresses=("memory_bandwidth_bound",), numerics=True,
        ),
        Knob(
            name="dtype", kind="choice", choices=("auto", "half", "float16", "bfloat16", "float32"), naive="auto",
            help="of weights and activations", numerics=True,
        ),
        Knob(
            name="load_format", kind="choice", choices=("auto", "safetensors", "pt", "dummy", "gguf", "bitsandbytes"),
            naive="auto", help="dummy: random weights, where only speed is measured",
        ),
        Knob(name="trust_remote_code", kind="bool", naive=False, help="run code that the checkpoint brings"),
        Knob(name="port", kind="int", low=0, high=65535, naive=0, help="port to serve on; 0 takes a free one"),
    )  # fmt: skip
