"""Text Generation Inference, 2.x and 3.x: ``text-generation-launcher``, which starts the shards and the router."""

import re
import tempfile
from pathlib import Path

from powerband.engines.commanded import Commanded, Description, Program
from powerband.engines.process import free_port
from powerband.engines.running import compare_settings, plain_values
from powerband.engines.server import logged_settings
from powerband.probes.http import read_json
from powerband.records.config import Effective, EngineConfig, Knob

KV_DTYPES = ("auto", "fp8_e4m3fn", "fp8_e5m2")
QUANTISATIONS = (
    "none", "fp8", "eetq", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "awq", "gptq", "marlin", "exl2",
    "compressed-tensors",
)  # fmt: skip
ATTENTION = ("auto", "flashinfer", "flashdecoding", "flashdecoding-ipex", "paged")
# Read from the environment, not from the command line.
ENVIRONMENT = ("ATTENTION", "PREFIX_CACHING", "USE_CUSTOM_NCCL", "CUDA_VISIBLE_DEVICES")
# What /info tells, by knob; what it leaves out stands in the launcher's log.
_INFO = (
    "max_concurrent_requests", "max_input_tokens", "max_total_tokens", "validation_workers", "max_client_batch_size",
    "waiting_served_ratio", "max_batch_total_tokens", "max_waiting_tokens", "max_batch_size",
)  # fmt: skip


def tgi_knobs() -> tuple[Knob, ...]:
    """Every setting that can be turned; ``naive`` is the launcher's default."""
    return (*_batching(), *_memory(), *_execution())


def _batching() -> tuple[Knob, ...]:
    return (
        Knob(
            name="max_concurrent_requests", kind="int", low=1, high=65536, naive=128, grid=(64, 128, 256, 512, 1024),
            help="requests in the server, waiting ones included; more are refused with HTTP 429",
            addresses=("no_batching", "queueing"),
        ),
        Knob(
            name="max_batch_prefill_tokens", kind="int", low=1, naive=4096, grid=(2048, 4096, 8192, 16384),
            help="prompt tokens of one prefill", addresses=("head_of_line_blocking", "compute_bound"),
        ),
        Knob(
            name="max_batch_total_tokens", kind="int", low=0, naive=0,
            help="prompt and answer tokens of a batch; 0: as many as the memory holds",
            addresses=("kv_pressure",),
        ),
        Knob(
            name="max_batch_size", kind="int", low=0, naive=0, help="requests in a batch; 0: as memory allows",
            addresses=("kv_pressure",),
        ),
        Knob(
            name="waiting_served_ratio", kind="float", low=0.0, high=100.0, naive=0.3, grid=(0.3, 1.2),
            help="waiting over running requests from which decoding pauses for a prefill", addresses=("queueing",),
        ),
        Knob(
            name="max_waiting_tokens", kind="int", low=1, naive=20, grid=(5, 20, 50),
            help="decode steps after which waiting requests are let in", addresses=("head_of_line_blocking",),
        ),
        Knob(
            name="validation_workers", kind="int", low=1, high=256, naive=2, grid=(2, 4, 8),
            help="tokenizer workers of the router", addresses=("tokenizer_bound", "input_pipeline_bound"),
        ),
    )  # fmt: skip


def _memory() -> tuple[Knob, ...]:
    return (
        Knob(
            name="cuda_memory_fraction", kind="float", low=0.01, high=1.0, naive=1.0,
            help="share of the visible memory that may be used", addresses=("kv_pressure",),
        ),
        Knob(name="max_input_tokens", kind="int", low=0, naive=0, help="longest prompt; 0: one less than a sequence"),
        Knob(
            name="max_total_tokens", kind="int", low=0, naive=0,
            help="longest prompt and answer; 0: what fits, up to the model's context", addresses=("kv_pressure",),
        ),
        Knob(
            name="kv_cache_dtype", kind="choice", choices=KV_DTYPES, naive="auto", grid=("auto", "fp8_e4m3fn"),
            help="how cached values are stored", addresses=("kv_pressure", "memory_bandwidth_bound"), numerics=True,
        ),
        Knob(
            name="quantize", kind="choice", choices=QUANTISATIONS, naive="none", grid=("none", "fp8"),
            help="how weights are quantised while loading", addresses=("memory_bandwidth_bound",), numerics=True,
        ),
        Knob(
            name="dtype", kind="choice", choices=("auto", "float16", "bfloat16"), naive="auto",
            help="of weights and activations; not beside quantize", numerics=True,
        ),
        Knob(
            name="PREFIX_CACHING", kind="choice", choices=("auto", "true", "false"), naive="auto",
            help="reuse the cache of equal prompt beginnings (environment variable, 3.x)",
            addresses=("prefix_cache_miss",),
        ),
    )  # fmt: skip


def _execution() -> tuple[Knob, ...]:
    return (
        Knob(
            name="num_shard", kind="int", low=1, high=64, naive=1, grid=(1, 2, 4, 8),
            help="cards that share each layer", addresses=("communication_bound", "memory_bandwidth_bound"),
        ),
        Knob(
            name="cuda_graphs", kind="text", naive="1,2,4,8,16,32",
            help="batch sizes to capture graphs for; 0: none", addresses=("launch_bound",),
        ),
        Knob(
            name="ATTENTION", kind="choice", choices=ATTENTION, naive="auto",
            grid=("auto", "flashinfer", "flashdecoding"), help="attention kernels (environment variable, 3.x)",
            addresses=("kernel_choice", "memory_bandwidth_bound"),
        ),
        Knob(
            name="speculate", kind="int", low=0, high=16, naive=0, grid=(0, 3),
            help="tokens guessed at each step: n-grams, or the model's Medusa heads",
            addresses=("memory_bandwidth_bound", "launch_bound"),
        ),
        Knob(name="disable_custom_kernels", kind="bool", naive=False, help="generic kernels only"),
        Knob(name="trust_remote_code", kind="bool", naive=False, help="run code that the checkpoint brings"),
        Knob(name="CUDA_VISIBLE_DEVICES", kind="text", naive="", help="the cards to use"),
        Knob(name="USE_CUSTOM_NCCL", kind="text", naive="", help="0: leave out TGI's own all-reduce"),
        Knob(name="port", kind="int", low=0, high=65535, naive=0, help="port to serve on; 0 takes a free one"),
    )  # fmt: skip


def refuse(config: EngineConfig, longest_tokens: int) -> str | None:
    """The rule of TGI that this config breaks, in words, or None."""
    knobs = config.knobs
    prompt, total = int(knobs.get("max_input_tokens", 0)), int(knobs.get("max_total_tokens", 0))
    if prompt and total and prompt >= total:
        return f"max_input_tokens={prompt} leaves no answer in max_total_tokens={total}"
    prefill, batch = int(knobs.get("max_batch_prefill_tokens", 0)), int(knobs.get("max_batch_total_tokens", 0))
    if prompt and prefill and prefill < prompt:
        return f"max_batch_prefill_tokens={prefill} cannot hold a prompt of max_input_tokens={prompt}"
    if batch and max(prefill, total, longest_tokens) > batch:
        return f"max_batch_total_tokens={batch} cannot hold {max(prefill, total, longest_tokens)} tokens at once"
    if knobs.get("quantize", "none") != "none" and knobs.get("dtype", "auto") != "auto":
        return "dtype cannot be set beside quantize"
    if knobs.get("quantize") == "exl2" and int(knobs.get("num_shard", 1)) > 1:
        return "exl2 weights cannot be spread over cards"
    return None


def read_effective(url: str, log: str, config: EngineConfig) -> Effective:
    """What /info says, and the launcher's log where it says nothing."""
    info = read_json(url + "/info", timeout_s=10)
    runs = logged_settings(log)
    runs |= {name: value for name, value in plain_values(info).items() if name in _INFO}
    if found := re.findall(r"Using attention (\w+) - Prefix caching (\w+)", log):
        runs |= {"ATTENTION": found[-1][0], "PREFIX_CACHING": str(found[-1][1] in ("1", "true")).lower()}
    return compare_settings(config.knobs, runs, "/info and startup log")


def identify(url: str) -> tuple[str, str]:
    """TGI answers to any model name; the version stands in /info."""
    info = read_json(url + "/info", timeout_s=10)
    return str(info.get("model_id", "tgi")), f"TGI {info.get('version', 'unknown')}"


def own_environment(port: int) -> dict[str, str]:
    """What two servers on one machine must not share, as variables: releases differ in which they have flags for."""
    return {
        "USAGE_STATS": "off",
        "PROMETHEUS_PORT": str(free_port()),
        "MASTER_PORT": str(free_port()),
        "SHARD_UDS_PATH": str(Path(tempfile.gettempdir()) / f"text-generation-server-{port}"),
    }


def Tgi() -> Commanded:
    """TGI takes no ignore_eos in its OpenAI routes: answers may end before the asked length."""
    return Commanded(
        Description(
            name="tgi",
            title="TGI",
            program=Program(
                script=("text-generation-launcher",),
                variable="POWERBAND_TGI",
                get="run inside the image ghcr.io/huggingface/text-generation-inference",
            ),
            knobs=tgi_knobs,
            model_flag="--model-id",
            host_flag="--hostname",
            naive={"num_shard": 1},
            refuse=refuse,
            environment=ENVIRONMENT,
            own_environment=own_environment,
            share_knob="cuda_memory_fraction",
            longest_knob="max_total_tokens",
            identify=identify,
            read_effective=read_effective,
        )
    )
