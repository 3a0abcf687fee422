"""What broke a vLLM server, from its log: the message that names the cause, not the last line of a traceback."""

import re
from pathlib import Path

from powerband.engines.server_faults import Fault, fault_at, first_match, read_from

# "(EngineCore pid=1938) ERROR 11-29 19:23:40 [v1/engine/core.py:1332] " and uvicorn's "INFO:     "
_PREFIX = re.compile(
    r"^(\([^)]*pid=\d+\)\s*)?((ERROR|WARNING|INFO|CRITICAL)[: ][^\]]*?\[[^\]]*\]\s?|(ERROR|INFO):\s+)?"
)

# In order: a cause before its consequences. Messages as vLLM 0.20 to 0.32 writes them.
_FAULTS: tuple[tuple[str, str], ...] = (
    ("out of memory", r"(CUDA out of memory occurred when warming up .*)"),
    ("out of memory", r"((?:CUDA|HIP|XPU) out of memory\. Tried to allocate [^.]*\.\d+ \w+.*)"),
    ("out of memory", r"((?:CUDA|HIP) error: out of memory.*|Triton Error \[\w+\]: out of memory.*)"),
    ("out of memory", r"(CUDA error: CUBLAS_STATUS_ALLOC_FAILED.*)"),
    ("out of memory", r"(DefaultCPUAllocator: can't allocate memory: .*|not enough memory: you tried to allocate .*)"),
    ("out of memory", r"(Available memory on node .* on kv cache allocation is less than requested memory.*)"),
    ("out of memory: no room for the KV cache", r"(No available memory for the cache blocks\..*)"),
    ("out of memory: no room for the KV cache", r"(To serve at least one request with .*max seq len.*)"),
    (
        "out of memory: no room for the KV cache",
        r"(The model's max seq len .* is larger than the maximum number of .*)",
    ),
    ("memory is held by others", r"(Free memory on device .* is less than desired GPU memory utilization.*)"),
    ("others released memory of the card while its free memory was measured", r"(Error in memory profiling\. .*)"),
    ("memory is held by others", r"(Available memory on node .* on startup is less than desired.*)"),
    ("unsupported quantisation", r"(The quantization method \S+ is not supported for the current GPU\..*)"),
    ("unsupported quantisation", r"(The quantization method %s is deprecated .*)"),
    ("unsupported quantisation", r"(\S+ quantization is currently not supported in .*)"),
    ("unsupported quantisation", r"(\S+ is not supported for quantization method .*)"),
    ("unsupported quantisation", r"(Quantization method specified in the model config .* does not match .*)"),
    ("unsupported quantisation", r"(Cannot find the config file for \w+|Unknown quantization method: .*)"),
    ("unsupported quantisation", r"(_C::\w*(?:quant|fp8|fp4|gptq|awq|marlin)\w*\(\) expected .*)"),  # built without it
    ("unsupported quantisation", r"(Failed to find a kernel that can implement .*)"),
    ("a flag is not known to this vLLM", r"(?:error: )(unrecognized arguments: .*|argument --\S+: .*)"),
    ("the port is taken", r"(.*address already in use.*)"),
    ("the engine hung", r"(RPC call to \w+ timed out\.?|.*Timed out waiting for engine core processes.*)"),
    ("a worker died", r"(Worker proc \S+ died unexpectedly.*)"),
)
_DEATHS: tuple[tuple[str, str], ...] = (
    ("the engine's core died", r"(Engine core proc \S+ died unexpectedly.*)"),
    ("the engine's core died", r"(.*[Ee]ngine core exited unexpectedly.*)"),
    ("the engine's core died", r"(.*EngineDeadError.*)"),
    ("the engine's core died", r"(EngineCore encountered a fatal error.*)"),
)
_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+)")
_CONSEQUENCES = ("EngineDeadError", "Engine core initialization failed", "WorkerProc initialization failed")


def read_fault(log: Path, start: int = 0, *, served: bool = False) -> Fault | None:
    """The fault that the log tells of from byte ``start`` on, or None; ``served`` as for ``find_fault``."""
    return find_fault(read_from(log, start), served=served)


def find_fault(text: str, *, served: bool = False) -> Fault | None:
    """The cause named first in the order above; else the first exception that is no consequence; else a bare death.

    ``served``: the text begins when the server was up. An exception that killed nothing is no fault then: a request
    may have been wrong.
    """
    lines = [_PREFIX.sub("", line.strip()) for line in text.splitlines()]
    named, death = first_match(lines, _FAULTS), first_match(lines, _DEATHS)
    if named is not None or (served and death is None):
        return named
    return _first_exception(lines) or death


def _first_exception(lines: list[str]) -> Fault | None:
    """The first uncaught exception; pydantic puts its message on the lines below."""
    for number, line in enumerate(lines):
        match = _ERROR.match(line)
        if match and not any(word in line for word in _CONSEQUENCES):
            below = next((one.strip() for one in lines[number + 1 : number + 4] if one.strip()), "")
            message = f"{match[2]} {below}" if "validation error" in line else match[2]
            return fault_at(lines, number, match[1], message)
    return None
