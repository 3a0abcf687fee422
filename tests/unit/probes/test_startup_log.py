"""Startup logs of five engines: figures as published in issues and model guides, in the lines their releases print."""

from pathlib import Path

import pytest

from powerband.probes.startup_log import parse_startup_log, read_startup_log
from powerband.records.errors import RequestError
from powerband.records.units import GIB, MIB

VLLM_V0 = """\
INFO 03-02 10:00:00 api_server.py:912] vLLM API server version 0.7.3
INFO 03-02 10:00:40 model_runner.py:1115] Loading model weights took 14.9888 GB
INFO 03-02 10:00:50 worker.py:267] the current vLLM instance can use total_gpu_memory (22.07GiB) \
x gpu_memory_utilization (0.90) = 19.86GiB
INFO 03-02 10:00:50 worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.05GiB; \
PyTorch activation peak memory takes 0.22GiB; the rest of the memory reserved for KV Cache is 4.60GiB.
INFO 03-02 10:00:50 executor_base.py:111] # cuda blocks: 2356, # CPU blocks: 2048
INFO 03-02 10:00:50 executor_base.py:116] Maximum concurrency for 131072 tokens per request: 0.29x
"""
VLLM_V1 = """\
INFO 04-05 10:00:00 [__init__.py:239] vLLM API server version 0.11.0
INFO 04-05 10:00:00 [utils.py:233] non-default args: {'model': 'm', 'max_model_len': 32768, 'enforce_eager': False}
INFO 04-05 10:00:01 [config.py:2000] Chunked prefill is enabled with max_num_batched_tokens=8192.
(Worker_TP0 pid=1) INFO 04-05 10:01:00 [gpu_model_runner.py:1549] Model loading took 13.1665 GiB and 3.9 seconds
(Worker_TP1 pid=2) INFO 04-05 10:01:00 [gpu_model_runner.py:1549] Model loading took 13.1600 GiB and 3.9 seconds
INFO 04-05 10:01:30 [gpu_worker.py:215] Available KV cache memory: 6.51 GiB
INFO 04-05 10:01:31 [kv_cache_utils.py:634] GPU KV cache size: 42,656 tokens
INFO 04-05 10:01:31 [kv_cache_utils.py:637] Maximum concurrency for 32,768 tokens per request: 1.30x
INFO 04-05 10:01:50 [gpu_model_runner.py:1686] Graph capturing finished in 20 secs, took 0.74 GiB
"""
VLLM_V2 = VLLM_V1.replace("0.11.0", "0.26.0") + (
    "INFO [gpu_worker.py:900] Free memory on device (139.1/139.8 GiB) on startup. Desired GPU memory utilization is "
    "(0.92, 128.62 GiB). Actual usage is 13.17 GiB for weight, 1.26 GiB for peak activation, 0.13 GiB for non-torch "
    "memory, and 0.74 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1`.\n"
)
SGLANG = """\
[2025-05-01 10:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static=0.85, tp_size=4, context_length=None)
[2025-05-01 10:00:10 TP0] Load weight begin. avail mem=21.63 GB
[2025-05-01 10:00:40 TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=6.09 GB, \
mem usage=15.54 GB.
[2025-05-01 10:00:41 TP0] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB
[2025-05-01 10:00:41 TP0] Memory pool end. avail mem=2.09 GB
[2025-05-01 10:00:50 TP0] Capture cuda graph end. Time elapsed: 9.0 s. mem usage=0.51 GB. avail mem=1.58 GB.
[2025-05-01 10:00:50 TP0] max_total_num_tokens=46611, chunked_prefill_size=2048, max_prefill_tokens=16384, \
max_running_requests=2049, context_len=32768
"""
TGI = """\
2024-05-07T10:00Z INFO text_generation_launcher: Args { num_shard: Some( 2 ), max_batch_prefill_tokens: Some( 4096 ) }
2024-05-07T10:01Z INFO text_generation_router: Setting max batch total tokens to 801568
"""
TRTLLM = """\
[TensorRT-LLM] TensorRT-LLM version: 0.17.0
[TensorRT-LLM][INFO] Loaded engine size: 14842 MiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.33 GiB for execution context memory.
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.11 GiB, available: 57.41 GiB
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 3305
[TensorRT-LLM][INFO] Number of tokens per block: 64.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 51.67 GiB for max tokens in paged KV cache (211520).
"""
# The PyTorch backend of 1.x; figures of a start that somebody published.
TRTLLM_PYTORCH = """\
[12/20/2025-04:21:38] [TRT-LLM] [I] max_seq_len=4096, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).
[12/20/2025-04:21:50] [TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: \
63.52 GiB
[12/20/2025-04:21:50] [TRT-LLM] [I] Memory used after loading model weights (outside torch) in memory usage profiling: \
49.78 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage \
profiling: 0.85 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: \
49.28 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 113.65 GiB, \
available KV cache memory when calculating max tokens: 5.95 GiB, fraction is set 0.8999999761581421, kv size is 73728. \
device total memory 119.70 GiB, , tmp kv_mem 0.56 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Estimated max memory in KV cache : 5.95 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86656).
"""
# Two cards, TGI 3.3; cut to the lines that tell something.
TGI_3 = """\
2025-07-04T12:35:02.586768Z  INFO text_generation_launcher: Args {
    validation_workers: 2,
    num_shard: Some(
        2,
    ),
    max_concurrent_requests: 128,
    max_total_tokens: None,
    max_waiting_tokens: 20,
}
2025-07-04T12:36:06.251692Z  INFO text_generation_launcher: KV-cache blocks: 52719, size: 1
2025-07-04T12:36:09.356551Z  INFO text_generation_router_v3: backends/v3/src/lib.rs:137: Setting max batch total \
tokens to 52125
2025-07-04T12:36:09.356606Z  INFO text_generation_router: backends/v3/src/main.rs:171: Maximum total tokens defaulted \
to 8000
"""
LLAMACPP = """\
load_tensors: loading model tensors, this can take a while...
load_tensors:  CPU_Mapped model buffer size =   100.00 MiB
load_tensors:       CUDA0 model buffer size =  4000.00 MiB
load_tensors:       CUDA0 model buffer size =  4000.00 MiB
llama_context: n_seq_max             = 4
llama_context: n_ctx                 = 8192
llama_context: n_ubatch              = 512
llama_kv_cache:      CUDA0 KV buffer size =   900.00 MiB
llama_kv_cache: size =  900.00 MiB (  2048 cells,  32 layers,  4/4 seqs), K (q8_0):  300.00 MiB, V (f16):  600.00 MiB
llama_context:  CUDA_Host  output buffer size =     1.00 MiB
llama_context:      CUDA0 compute buffer size =   250.00 MiB
"""


def gib(value: float | None) -> float:
    assert value is not None
    return value / GIB


def test_vllm_v0() -> None:
    log = parse_startup_log(VLLM_V0)
    assert (log.engine, log.version) == ("vllm", "0.7.3")
    found = log.report
    assert gib(found.weights_bytes) == pytest.approx(14.9888)
    assert gib(found.activation_bytes) == pytest.approx(0.22)
    assert gib(found.non_torch_bytes) == pytest.approx(0.05)
    assert gib(found.kv_cache_bytes) == pytest.approx(4.60)
    assert gib(found.total_bytes) == pytest.approx(22.07)
    assert gib(found.budget_bytes) == pytest.approx(19.86)
    assert (found.kv_tokens, found.max_concurrency) == (2356 * 16, 0.29)
    assert log.settings == {"gpu_memory_utilization": 0.9, "max_model_len": 131072}


def test_vllm_v1_takes_the_fullest_rank() -> None:
    log = parse_startup_log(VLLM_V1)
    assert (log.engine, log.version) == ("vllm", "0.11.0")
    assert gib(log.report.weights_bytes) == pytest.approx(13.1665)
    assert gib(log.report.kv_cache_bytes) == pytest.approx(6.51)
    assert gib(log.report.cuda_graphs_bytes) == pytest.approx(0.74)
    assert (log.report.kv_tokens, log.report.max_concurrency) == (42656, 1.30)
    assert log.report.activation_bytes is None  # V1 does not print it
    assert log.settings["max_model_len"] == 32768
    assert log.settings["max_num_batched_tokens"] == 8192
    assert log.settings["enforce_eager"] is False


def test_vllm_v2_splits_its_usage() -> None:
    found = parse_startup_log(VLLM_V2).report
    assert gib(found.activation_bytes) == pytest.approx(1.26)
    assert gib(found.non_torch_bytes) == pytest.approx(0.13)
    assert gib(found.total_bytes) == pytest.approx(139.8)
    assert gib(found.budget_bytes) == pytest.approx(128.62)


def test_vllm_that_refuses_a_length_still_says_what_was_left() -> None:
    text = (
        "INFO Initializing a V1 LLM engine (v0.10.1) with config: m\nValueError: To serve at least one request with "
        "the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (0.71 GiB). Based on the available memory, the estimated maximum model length is 5632.\n"
    )
    log = parse_startup_log(text)
    assert log.version == "0.10.1"
    assert gib(log.report.kv_cache_bytes) == pytest.approx(0.71)


def test_sglang() -> None:
    log = parse_startup_log(SGLANG)
    assert log.engine == "sglang"
    assert gib(log.report.weights_bytes) == pytest.approx(15.54)
    assert gib(log.report.kv_cache_bytes) == pytest.approx(2.84)
    assert gib(log.report.cuda_graphs_bytes) == pytest.approx(0.51)
    assert log.report.kv_tokens == 46611
    assert log.settings == {
        "mem_fraction_static": 0.85,
        "chunked_prefill_size": 2048,
        "max_running_requests": 2049,
        "tp_size": 4,
        "context_length": 32768,
    }
    newer = SGLANG.replace(
        "Capture cuda graph end. Time elapsed: 9.0 s. mem usage=0.51 GB. avail mem=1.58 GB.",
        "Capture target prefill CUDA graph end. elapsed=61.11 s, mem usage=0.40 GB, avail mem=1.69 GB.\n"
        "[2026-08-15 10:00:50 TP0] Capture target decode CUDA graph end. elapsed=8.80 s, mem usage=0.11 GB.",
    )
    assert gib(parse_startup_log(newer).report.cuda_graphs_bytes) == pytest.approx(0.51)
    older = SGLANG.replace(", \\\nmem usage=15.54 GB", "").replace(", mem usage=15.54 GB", "")
    assert gib(parse_startup_log(older).report.weights_bytes) == pytest.approx(15.54)


def test_tgi_names_tokens() -> None:
    log = parse_startup_log(TGI)
    assert (log.engine, log.report.kv_tokens) == ("tgi", 801568)
    assert log.settings == {"max_batch_prefill_tokens": 4096, "num_shard": 2}
    blocks = parse_startup_log("text_generation_launcher: KV-cache blocks: 12345, size: 16\n")
    assert blocks.report.kv_tokens == 12345 * 16


def test_tensorrt_llm() -> None:
    log = parse_startup_log(TRTLLM)
    assert (log.engine, log.version) == ("tensorrt-llm", "0.17.0")
    assert log.report.weights_bytes == 14842 * MIB
    assert gib(log.report.activation_bytes) == pytest.approx(1.33)
    assert gib(log.report.kv_cache_bytes) == pytest.approx(51.67)
    assert log.report.kv_tokens == 211520 == 3305 * 64
    assert log.settings == {"tokens_per_block": 64}


def test_tensorrt_llm_with_the_pytorch_backend() -> None:
    log = parse_startup_log(TRTLLM_PYTORCH)
    assert log.engine == "tensorrt-llm"
    report = log.report
    assert gib(report.weights_bytes) == pytest.approx(63.52)
    assert gib(report.activation_bytes) == pytest.approx(0.85)
    assert gib(report.non_torch_bytes) == pytest.approx(49.28)
    assert gib(report.kv_cache_bytes) == pytest.approx(5.95)  # the first, of 0.56 GiB, was for the profiling run
    assert gib(report.total_bytes) == pytest.approx(119.70)
    assert (report.kv_tokens, report.max_model_len) == (86656, 4096)
    assert log.settings == {"max_num_tokens": 8192, "max_batch_size": 64, "max_seq_len": 4096}


def test_tgi_3() -> None:
    log = parse_startup_log(TGI_3)
    assert (log.engine, log.report.kv_tokens, log.report.max_model_len) == ("tgi", 52125, 8000)
    assert log.settings == {
        "max_concurrent_requests": 128, "validation_workers": 2, "max_waiting_tokens": 20, "num_shard": 2,
    }  # fmt: skip


def test_llamacpp_sums_its_backends_and_counts_a_repeated_line_once() -> None:
    log = parse_startup_log(LLAMACPP)
    assert log.engine == "llamacpp"
    assert log.report.weights_bytes == 4100 * MIB
    assert log.report.kv_cache_bytes == 900 * MIB
    assert log.report.activation_bytes == 251 * MIB
    assert log.report.kv_tokens == 8192
    assert log.settings == {
        "n_ctx": 8192, "n_parallel": 4, "n_ubatch": 512, "cache_type_k": "q8_0", "cache_type_v": "f16",
    }  # fmt: skip


def test_llamacpp_of_this_machine(request: pytest.FixtureRequest) -> None:
    """The whole log of a start, as recorded: the load that counts is the last one."""
    path = Path(__file__).parents[2] / "golden" / "startup" / "llamacpp-2026.10.log"
    found = read_startup_log(path).report
    assert found.weights_bytes is not None
    assert found.kv_cache_bytes is not None
    assert found.weights_bytes / MIB == pytest.approx(92.1, abs=0.01)
    assert found.kv_cache_bytes > 0


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "Traceback (most recent call last):\n"])
def test_what_is_no_startup_log_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="no startup log") as caught:
        parse_startup_log(text)
    assert "vllm" in caught.value.hint


def test_a_log_without_figures_says_what_to_do() -> None:
    with pytest.raises(RequestError, match="names no memory"):
        parse_startup_log("INFO vLLM API server version 0.11.0\nnothing else\n")


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot read log"):
        read_startup_log(tmp_path / "none.log")
