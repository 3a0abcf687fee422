"""Engine settings that bear on memory, in each engine's own spelling."""

from powerband.records.config import Knob


def _whole(name: str, help: str, naive: int, low: int = 1) -> Knob:
    return Knob(name=name, kind="int", help=help, naive=naive, low=low)


def _share(name: str, help: str, naive: float) -> Knob:
    return Knob(name=name, kind="float", help=help, naive=naive, low=0.0, high=1.0)


def _choice(name: str, help: str, naive: str, choices: tuple[str, ...]) -> Knob:
    return Knob(name=name, kind="choice", help=help, naive=naive, choices=choices, numerics=True)


def _amount(name: str, help: str) -> Knob:
    return Knob(name=name, kind="float", help=help, naive=0.0, low=0.0)


def _flag(name: str, help: str) -> Knob:
    return Knob(name=name, kind="bool", help=help, naive=False)


_VLLM_CACHE = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla")
_QUANTISATIONS = ("none", "fp8", "awq", "gptq", "bitsandbytes")

MEMORY_KNOBS: dict[str, tuple[Knob, ...]] = {
    "vllm": (
        _share("gpu_memory_utilization", "share of the device that vLLM may use", 0.92),
        _whole("max_model_len", "longest sequence, prompt and answer", 4096),
        _whole("max_num_batched_tokens", "tokens in one step", 8192),
        _whole("max_num_seqs", "sequences in one step", 256),
        _whole("tensor_parallel_size", "cards that share each layer", 1),
        _whole("pipeline_parallel_size", "cards that share the layers between them", 1),
        _whole("block_size", "tokens in one cache block", 16),
        _choice("kv_cache_dtype", "how cached values are stored", "auto", _VLLM_CACHE),
        _choice("quantization", "quantise the weights while loading", "none", _QUANTISATIONS),
        _choice("dtype", "of weights and activations", "auto", ("auto", "bfloat16", "float16", "float32")),
        _flag("enforce_eager", "no CUDA graphs"),
        _flag("enable_expert_parallel", "spread whole experts over the ranks"),
        _flag("enable_prefix_caching", "reuse the cache of equal prompt beginnings"),
        _amount("kv_cache_memory_bytes", "bytes of the cache, whatever gpu_memory_utilization leaves (0: not set)"),
        _amount("cpu_offload_gb", "GiB of weights kept in the host's memory"),
        _whole("num_gpu_blocks_override", "blocks of the cache (0: as many as fit)", 0, low=0),
    ),
    "sglang": (
        _share("mem_fraction_static", "share of the device for weights and cache", 0.88),
        _whole("context_length", "longest sequence", 4096),
        _whole("chunked_prefill_size", "tokens of one prefill chunk", 8192),
        _whole("max_running_requests", "sequences in one step", 256),
        _whole("tp_size", "cards that share each layer", 1),
        _whole("dp_size", "copies of the model", 1),
        _choice("kv_cache_dtype", "how cached values are stored", "auto", ("auto", "fp8_e5m2", "fp8_e4m3", "bfloat16")),
        _choice("quantization", "quantise the weights while loading", "none", _QUANTISATIONS),
        _flag("disable_cuda_graph", "no CUDA graphs"),
    ),
    "tgi": (
        _share("cuda_memory_fraction", "share of the free memory that TGI may use", 1.0),
        _whole("max_total_tokens", "longest sequence, prompt and answer", 4096),
        _whole("max_batch_prefill_tokens", "tokens of one prefill", 4096),
        _whole("num_shard", "cards that share each layer", 1),
        _choice("kv_cache_dtype", "how cached values are stored", "auto", ("auto", "fp8_e4m3fn", "fp8_e5m2")),
        _choice("quantize", "how weights are quantised while loading", "none", ("none", "fp8", "bitsandbytes")),
    ),
    "tensorrt-llm": (
        _share("kv_cache_free_gpu_memory_fraction", "share of the memory left after loading for the cache", 0.9),
        _whole("max_seq_len", "longest sequence", 4096),
        _whole("max_num_tokens", "tokens in one step", 8192),
        _whole("max_batch_size", "sequences in one step", 256),
        _whole("tp_size", "cards that share each layer", 1),
        _whole("pp_size", "cards that share the layers between them", 1),
        _whole("tokens_per_block", "tokens in one cache block", 32),
        _choice("kv_cache_dtype", "how cached values are stored", "auto", ("auto", "fp8", "int8")),
    ),
    "openvino": (
        _whole("max_num_seqs", "sequences in one step", 1),
        _whole("max_num_batched_tokens", "tokens in one step", 256),
        _whole("cache_size", "GB of the KV cache (0: it grows as needed)", 0, low=0),
        _choice("KV_CACHE_PRECISION", "how cached values are stored", "auto", ("auto", "u8", "f16", "bf16", "f32")),
    ),
    "transformers": (
        _whole("max_length", "longest sequence", 4096),
        _whole("batch_size", "sequences generated together", 1),
        _choice("dtype", "of weights and activations", "auto", ("auto", "bfloat16", "float16", "float32")),
    ),
    "llamacpp": (
        _whole("n_ctx", "cells of the cache over all slots (0: the model's context)", 0, low=0),
        _whole("n_parallel", "slots", 1),
        _whole("n_batch", "tokens of one logical batch", 2048),
        _whole("n_ubatch", "tokens of one physical batch", 512),
        Knob(name="n_gpu_layers", kind="int", help="layers on the card (-1: all)", naive=-1, low=-1),
        _choice("cache_type_k", "how keys are stored", "f16",
                ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")),
        _choice("cache_type_v", "how values are stored", "f16",
                ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")),
        _choice("flash_attn", "fused attention", "auto", ("auto", "on", "off")),
        _flag("kv_unified", "one cache for all slots"),
        _flag("swa_full", "windowed layers keep a full cache"),
    ),
}  # fmt: skip
