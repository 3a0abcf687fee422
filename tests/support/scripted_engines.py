"""Stand-ins for SGLang, TGI, TensorRT-LLM and MLX: they take the flags that a release takes and no others, print what
it prints at the start, and serve by the fake server in its dialect.

Flags stand in tests/golden/flags; messages are those of the engines' sources. A start fails out of memory where the
knob named in FAILING has that value.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FLAGS = Path(__file__).parents[1] / "golden" / "flags"
NEWEST = {"sglang": "sglang-0.5.23", "tgi": "tgi-3.3.7", "tensorrt-llm": "tensorrt-llm-1.2", "mlx": "mlx-0.32.2"}
SCRIPTS = {
    "sglang": "sglang-python",
    "tgi": "text-generation-launcher",
    "tensorrt-llm": "trtllm-serve",
    "mlx": "mlx_lm.server",
}
VARIABLES = {
    "sglang": "POWERBAND_SGLANG",
    "tgi": "POWERBAND_TGI",
    "tensorrt-llm": "POWERBAND_TRTLLM",
    "mlx": "POWERBAND_MLX",
}
FAILING = {
    "sglang": ("mem_fraction_static", 0.05),
    "tgi": ("cuda_memory_fraction", 0.01),
    "tensorrt-llm": ("kv_cache_free_gpu_memory_fraction", 0.01),
    "mlx": ("prefill_step_size", 32),
}
OOM = {
    "sglang": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "tgi": 'Error: Backend(Warmup(Generation("Not enough memory to handle 4096 prefill tokens. You need to decrease '
    '`--max-batch-prefill-tokens`")))',
    "tensorrt-llm": "RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: Can't allocate KV cache blocks: not enough "
    "memory",
    "mlx": "RuntimeError: [metal::malloc] Resource limit (499000) exceeded.",
}
UP = {
    "sglang": """\
[2026-11-01 10:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static={mem_fraction_static}, tp_size=1)
[2026-11-01 10:00:10] Load weight begin. avail mem=139.10 GB
[2026-11-01 10:00:40] Load weight end. elapsed=30.00 s, type=LlamaForCausalLM, dtype=torch.bfloat16, \
avail mem=125.60 GB, mem usage=13.50 GB.
[2026-11-01 10:00:41] KV Cache is allocated. #tokens: 221184, K size: 54.00 GB, V size: 54.00 GB
[2026-11-01 10:00:50] Capture cuda graph end. Time elapsed: 9.00 s. mem usage=0.51 GB. avail mem=16.00 GB.
[2026-11-01 10:00:50] max_total_num_tokens=221184, chunked_prefill_size={chunked_prefill_size}, \
max_prefill_tokens=16384, max_running_requests=4096, context_len=4096, available_gpu_mem=16.00 GB
""",
    "tgi": """\
2026-11-01T10:00:00.000000Z  INFO text_generation_launcher: Args {{
    validation_workers: {validation_workers},
    num_shard: Some(
        {num_shard},
    ),
    max_concurrent_requests: {max_concurrent_requests},
    max_waiting_tokens: {max_waiting_tokens},
}}
2026-11-01T10:00:01.000000Z  INFO text_generation_launcher: Using attention flashinfer - Prefix caching 1
2026-11-01T10:00:30.000000Z  INFO text_generation_launcher: KV-cache blocks: 52719, size: 1
2026-11-01T10:00:31.000000Z  INFO text_generation_router_v3: src/lib.rs:137: Setting max batch total tokens to 52125
""",
    "tensorrt-llm": """\
[11/01/2026-10:00:00] [TRT-LLM] [I] max_seq_len=4096, max_num_requests={max_batch_size}, \
max_num_tokens={max_num_tokens}, max_batch_size={max_batch_size}
[11/01/2026-10:00:20] [TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: \
12.55 GiB
[11/01/2026-10:00:21] [TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage \
profiling: 0.85 GiB
[11/01/2026-10:00:21] [TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: \
1.50 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 108.00 GiB for max tokens in paged KV cache (221184).
""",
    "mlx": "2026-11-01 10:00:00,000 - INFO - Starting httpd at 127.0.0.1 on port {port}...\n",
}
_WORKER = "import time; time.sleep(600)"


def flags_of(release: str) -> dict[str, dict[str, Any]]:
    """Flag -> {"takes": "value" | "nothing", "choices": [...]}, as recorded."""
    document = json.loads((FLAGS / f"{release}.json").read_text())
    flags: dict[str, dict[str, Any]] = document["flags"]
    return flags


def parser_of(engine: str, release: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=engine, allow_abbrev=False)
    if engine == "tensorrt-llm":
        parser.add_argument("model")
    for flag, facts in flags_of(release).items():
        if facts["takes"] == "nothing":
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, choices=facts.get("choices"))
    return parser


def main(engine: str, argv: list[str]) -> int:
    if engine == "sglang":  # stands for a python
        assert argv[:2] == ["-m", "sglang.launch_server"], argv
        argv = argv[2:]
    given = {name: value for name, value in vars(parser_of(engine, NEWEST[engine]).parse_args(argv)).items() if value}
    knob, value = FAILING[engine]
    if knob in given and float(given[knob]) == value:
        sys.stderr.write(f"Traceback (most recent call last):\n{OOM[engine]}\n")
        return 1
    settings = {name: _number(text) for name, text in given.items() if isinstance(text, str)}
    settings |= {name: True for name, text in given.items() if text is True}
    sys.stderr.write(UP[engine].format_map(_Stock(given)))
    sys.stderr.flush()
    subprocess.Popen([sys.executable, "-c", _WORKER], start_new_session=True)  # as one process a card would be
    model = given.get("model") or given.get("model_path") or given.get("model_id")
    host = given.get("host") or given.get("hostname")
    command = [sys.executable, "-m", "powerband.engines.fake_server", "--dialect", engine, "--model", str(model)]
    command += ["--host", str(host), "--port", str(given["port"]), "--step-ms", "2", "--settings", json.dumps(settings)]
    return subprocess.run(command, stdout=subprocess.DEVNULL).returncode


class _Stock(dict[str, Any]):
    """The engines' own defaults for what the messages name and nobody set."""

    def __missing__(self, name: str) -> str:
        return {"mem_fraction_static": "0.88", "chunked_prefill_size": "8192", "validation_workers": "2"}.get(
            name,
            {"max_concurrent_requests": "128", "max_waiting_tokens": "20", "max_num_tokens": "8192"}.get(name, "1"),
        )


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def install(engine: str, folder: Path) -> Path:
    """A script in ``folder`` that stands for the engine's program."""
    script = folder / "bin" / SCRIPTS[engine]
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {engine} "$@"\n')
    script.chmod(0o755)
    return script


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
