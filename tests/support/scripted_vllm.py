"""A stand-in for ``vllm serve``: prints what vLLM 0.26 prints, serves by the fake server, fails by --max-num-seqs.

Messages are those of vLLM 0.26 (v1/worker/utils.py, v1/core/kv_cache_utils.py, config/vllm.py, v1/engine/core.py).
"""

import argparse
import subprocess
import sys
from pathlib import Path

CORE = "(EngineCore pid=1938) ERROR 11-29 19:23:40 [v1/engine/core.py:1332] "
API = "(APIServer pid=1814) ERROR 11-29 19:23:40 [v1/engine/async_llm.py:704] "
DEAD = "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB "
    "of which 1.21 GiB is free. Process 1938 has 138.58 GiB memory in use."
)
NO_ROOM = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
    "the engine (this flag also controls CPU memory reservation on the CPU backend, despite its name)."
)
NO_QUANT = (
    "  Value error, The quantization method fp8 is not supported for the current GPU. Minimum capability: 75. Current "
    "capability: 70. [type=value_error, input_value=ArgsKwargs((), {})]"
)
NOT_FREE = (
    "ValueError: Free memory on device cuda:0 (10.5/139.8 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 128.62 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
AT_START = {1: OOM, 2: NO_ROOM, 3: NO_QUANT, 4: NOT_FREE}
IN_RUN = {5: OOM, 6: "Engine core proc EngineCore died unexpectedly, shutting down client."}
HANGS, LATE = 7, 8  # 8: comes up and never answers /health
UP = """\
(APIServer pid=1814) INFO 11-29 19:22:24 [entrypoints/utils.py:345]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.26.0
(APIServer pid=1814) INFO 11-29 19:22:24 [entrypoints/utils.py:273] non-default args: {{'model_tag': 'm', \
'max_num_seqs': {seqs}}}
(APIServer pid=1814) INFO 11-29 19:22:43 [config/scheduler.py:252] Chunked prefill is enabled with \
max_num_batched_tokens={tokens}.
(EngineCore pid=1938) INFO 11-29 19:23:00 [v1/engine/core.py:116] Initializing a V1 LLM engine (v0.26.0) with \
config: model='m', speculative_config=None, dtype=torch.bfloat16, max_seq_len=4096, load_format=auto, \
tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, enforce_eager=False, \
kv_cache_dtype=auto, enable_prefix_caching=True, enable_chunked_prefill=True
(EngineCore pid=1938) INFO 11-29 19:23:04 [v1/worker/gpu/model_runner.py:305] Model loading took 12.55 GiB and 2.3 s
(EngineCore pid=1938) INFO 11-29 19:23:22 [v1/worker/gpu_worker.py:560] Available KV cache memory: 115.4 GiB
(EngineCore pid=1938) INFO 11-29 19:23:22 [v1/core/kv_cache_utils.py:2177] GPU KV cache size: 236,336 tokens
(APIServer pid=1814) INFO:     Application startup complete.
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--enforce-eager", action="store_true")
    given = parser.parse_args(argv)
    seqs = given.max_num_seqs
    if seqs in AT_START:
        say(CORE + "EngineCore failed to start.", CORE + "Traceback (most recent call last):", CORE + AT_START[seqs])
        say(API + "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
        return 1
    say(UP.format(seqs=seqs, tokens=given.max_num_batched_tokens).rstrip())
    command = [sys.executable, "-m", "powerband.engines.fake_server", "--dialect", "vllm", "--model", given.model]
    command += ["--host", given.host, "--port", str(given.port), "--slots", str(min(seqs, 64)), "--step-ms", "2"]
    if seqs in IN_RUN:
        command += ["--die-after", "9"]
    elif seqs == HANGS:
        command += ["--stall-after", "0"]
    elif seqs == LATE:
        command += ["--startup-delay", "600"]
    core = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    code = core.wait()
    if seqs in IN_RUN:
        say(CORE + "EngineCore encountered a fatal error.", CORE + IN_RUN[seqs], API + DEAD)
    return code


def say(*lines: str) -> None:
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def install(folder: Path) -> Path:
    """A ``vllm`` script in ``folder`` that runs this file."""
    script = folder / "bin" / "vllm"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    script.chmod(0o755)
    return script


def small_model(folder: Path) -> Path:
    """config.json of a Llama of two layers."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,'
        ' "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512,'
        ' "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}'
    )
    return model


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
