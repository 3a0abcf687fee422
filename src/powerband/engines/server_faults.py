"""What broke a server, from its log: the message that names the cause, not the last line of what followed from it.

vLLM has a reader of its own. Messages stand here as SGLang 0.4.10 to 0.5.23, TGI 2.4 to 3.3, TensorRT-LLM 0.18 to 1.2
and MLX's Metal backend write them; a server that dies without one of them is told by its last lines.
"""

import re
from pathlib import Path

_MOST_BYTES = 8 << 20
_MOST_CHARS = 400
_MEMORY, _ROOM = "out of memory", "out of memory: no room for the KV cache"

# In order: a cause before its consequences.
_FAULTS: tuple[tuple[str, str], ...] = (
    (_ROOM, r"(Not enough memory\. Please try to increase --mem-fraction-static.*)"),
    (_ROOM, r"(The following component could not be created: .*KV cache.*)"),
    (_ROOM, r"(.*Can't allocate KV cache blocks.*)"),
    (_MEMORY, r"(The following component could not be created: .*)"),
    (_MEMORY, r"(Executor creation failed due to insufficient GPU memory.*)"),
    (_MEMORY, r"(Not enough memory to handle .*?prefill tokens.*?)(?:\"\)+)?$"),
    (_MEMORY, r"((?:CUDA|HIP|XPU) out of memory\. Tried to allocate [^.]*\.\d+ \w+.*)"),
    (_MEMORY, r"((?:Prefill|Decode) out of memory\..*|alloc_req_slots runs out of memory\..*)"),
    (_MEMORY, r"(\[METAL\] Command buffer execution failed: Insufficient Memory.*)"),
    (_MEMORY, r"(\[(?:metal::)?malloc\w*\] .*(?:Resource limit|Unable to allocate|maximum allowed buffer size).*)"),
    ("memory is held by others", r"(The memory capacity is unbalanced\. .*)"),
    ("unsupported quantisation", r"(.*quantization method \S+ is not supported for the current GPU\..*)"),
    ("a flag is not known to this release", r"error: (unrecognized arguments: .*|unexpected argument .*)"),
    ("a flag is not known to this release", r"Error: (No such option:? .*)"),
    ("a flag's value is refused", r"error: (argument --\S+: .*|invalid value .*)"),
    ("the port is taken", r"(.*[Aa]ddress already in use.*)"),
    ("the engine hung", r"(.*[Ww]atchdog timeout .*)"),
)


def find_fault(text: str) -> str | None:
    """ "kind: message" of the cause named first in the order above, or None."""
    lines = [line.strip() for line in text.splitlines()]
    for kind, pattern in _FAULTS:
        known = re.compile(pattern)
        for line in lines:
            match = known.search(line)
            if match:
                return f"{kind}: {match[1].strip()[:_MOST_CHARS]}"
    return None


def read_fault(log: Path, start: int = 0) -> str | None:
    """As ``find_fault``, of a log from byte ``start`` on; None where it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            return find_fault(file.read(_MOST_BYTES).decode("utf-8", "replace"))
    except OSError:
        return None
