"""Logs as the engines wrote them in the issues and sources named; the cause is found above what followed from it."""

from pathlib import Path

import pytest

from powerband.engines.server_faults import find_fault, read_fault

CASES = {
    "sglang 0.5, pool_configurator.py": (
        "[2026-11-01 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        "Current value: mem_fraction_static=0.85\n"
        "[2026-11-01 10:00:00] Received sigquit from a child process. It usually means the child failed.\n",
        "out of memory: no room for the KV cache: Not enough memory. Please try to increase --mem-fraction-static. "
        "Current value: mem_fraction_static=0.85",
    ),
    "sglang#10408": (
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`. ",
        "out of memory: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`.",
    ),
    "sglang#4730": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 616.00 MiB. GPU 0 has a total capacity of ...",
        "out of memory: CUDA out of memory. Tried to allocate 616.00 MiB. GPU 0 has a total capacity of ...",
    ),
    "sglang, two of one node": (
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre=9, local=139",
        "memory is held by others: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "pre=9, local=139",
    ),
    "tgi, the warm-up": (
        'Error: Backend(Warmup(Generation("Not enough memory to handle 4096 prefill tokens. You need to decrease '
        '`--max-batch-prefill-tokens`")))',
        "out of memory: Not enough memory to handle 4096 prefill tokens. You need to decrease "
        "`--max-batch-prefill-tokens`",
    ),
    "tgi, clap": (
        "error: unexpected argument '--no-such' found\n",
        "a flag is not known to this release: unexpected argument '--no-such' found",
    ),
    "TensorRT-LLM#5872": (
        "[TRT-LLM] [RANK 1] [E] Failed to initialize executor on rank 1: Executor creation failed due to insufficient "
        "GPU memory.\n\nThe following component could not be created: KV cache\nTotal GPU memory (GiB): 140.06\n",
        "out of memory: no room for the KV cache: The following component could not be created: KV cache",
    ),
    "TensorRT-LLM#5950": (
        "RuntimeError: Executor creation failed due to insufficient GPU memory.\n\n"
        "The following component could not be created: Additional executor resources\n",
        "out of memory: The following component could not be created: Additional executor resources",
    ),
    "mlx#479": (
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution "
        "failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "out of memory: [METAL] Command buffer execution failed: Insufficient Memory "
        "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    ),
    "argparse": (
        "launch_server.py: error: unrecognized arguments: --no-such 3\n",
        "a flag is not known to this release: unrecognized arguments: --no-such 3",
    ),
    "a healthy start": ("INFO: Uvicorn running\navail mem=16.00 GB, out of 139 GB\n", None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_named(case: str) -> None:
    text, fault = CASES[case]
    found = find_fault(text)
    assert (None if found is None else found.summary) == fault


def test_what_stood_before_the_start_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(CASES["mlx#479"][0] + "\n")
    size = log.stat().st_size
    assert read_fault(log) is not None
    assert read_fault(log, size) is None
    assert read_fault(tmp_path / "none") is None
