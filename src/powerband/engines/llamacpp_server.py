"""llama.cpp's server from the xllamacpp wheel, with the flags of llama-server that powerband uses.

``python -m powerband.engines.llamacpp_server --model FILE.gguf --port 8080 --parallel 8 ...``. It runs as a process of
its own because the wheel's server cannot be closed: it ends with its process.
"""

import argparse
import signal
import sys
import threading
from typing import Any

from powerband.engines.llamacpp_knobs import KV_TYPES, SPEC_TYPES


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m powerband.engines.llamacpp_server", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    for flag in ("--port", "--parallel", "--ctx-size", "--batch-size", "--ubatch-size", "--threads", "--poll"):
        parser.add_argument(flag, type=int)
    for flag in ("--threads-batch", "--threads-http", "--n-gpu-layers", "--cache-ram", "--cpu-strict"):
        parser.add_argument(flag, type=int)
    parser.add_argument("--cpu-mask", type=lambda text: int(text, 16))
    parser.add_argument("--flash-attn", choices=("auto", "on", "off"))
    parser.add_argument("--cache-type-k", choices=KV_TYPES)
    parser.add_argument("--cache-type-v", choices=KV_TYPES)
    parser.add_argument("--spec-type", choices=SPEC_TYPES)
    parser.add_argument("--chat-template")
    for name in ("cont-batching", "cache-prompt", "kv-unified", "jinja"):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    parser.add_argument("--metrics", action="store_true")
    return parser


# Flag of llama-server -> attribute of xllamacpp.CommonParams, where the value is taken as it stands.
_PLAIN = {
    "port": "port",
    "parallel": "n_parallel",
    "ctx_size": "n_ctx",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "threads_http": "n_threads_http",
    "n_gpu_layers": "n_gpu_layers",
    "cache_ram": "cache_ram_mib",
    "cont_batching": "cont_batching",
    "cache_prompt": "cache_prompt",
    "kv_unified": "kv_unified",
    "chat_template": "chat_template",
    "jinja": "use_jinja",
}


def _set_params(params: Any, given: argparse.Namespace, xllamacpp: Any) -> None:
    """Carry the given flags over to CommonParams; what was not given keeps llama.cpp's default."""
    params.model.path = given.model
    params.hostnames = [given.host]
    for flag, attribute in _PLAIN.items():
        value = getattr(given, flag)
        if value is not None:
            setattr(params, attribute, value)
    _set_threads(params, given)
    if given.flash_attn is not None:
        kinds = xllamacpp.llama_flash_attn_type
        by_name = {"auto": kinds.LLAMA_FLASH_ATTN_TYPE_AUTO, "off": kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED}
        params.flash_attn_type = by_name.get(given.flash_attn, kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED)
    for side in ("k", "v"):
        name = getattr(given, f"cache_type_{side}")
        if name is not None:
            setattr(params, f"cache_type_{side}", getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}"))
    if given.spec_type is not None:
        member = "COMMON_SPECULATIVE_TYPE_" + given.spec_type.upper().replace("-", "_")
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, member)]
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.ui = False
    params.fit_params = False  # sizes are decided by whoever set the flags, and must not be changed behind their back
    params.verbosity = 4  # the level that prints buffer sizes and the effective settings


def _set_threads(params: Any, given: argparse.Namespace) -> None:
    """Threads, spinning and placement; prompt threads follow decode threads where not given, as in llama.cpp."""
    for group, threads in ((params.cpuparams, given.threads), (params.cpuparams_batch, given.threads_batch)):
        count = threads if threads is not None else given.threads
        if count is not None:
            group.n_threads = count
        if given.poll is not None:
            group.poll = given.poll
        if given.cpu_strict is not None:
            group.strict_cpu = bool(given.cpu_strict)
        if given.cpu_mask is not None:
            mask = list(group.cpumask)
            group.cpumask = [bool(given.cpu_mask >> core & 1) for core in range(len(mask))]
            group.mask_valid = True


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import xllamacpp  # here and not above: the flags can be read without the wheel

    params = xllamacpp.CommonParams()
    _set_params(params, given, xllamacpp)
    sys.stderr.write(f"xllamacpp {xllamacpp.__version__}\n")
    server = xllamacpp.Server(params)
    sys.stderr.write(f"serving at {server.listening_address}\n")
    sys.stderr.flush()
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
