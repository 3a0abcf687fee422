"""What broke a server, from its log: the message that names the cause, not the last line of what followed from it.

vLLM has a reader of its own. Messages stand here as SGLang 0.4.10 to 0.5.23, TGI 2.4 to 3.3, TensorRT-LLM 0.18 to 1.2
and MLX's Metal backend write them; a server that dies without one of them is told by its last lines.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from powerband.records.value import Record

_MOST_BYTES = 8 << 20  # of a log: a start at DEBUG is 0.2 MB, a run adds a line every ten seconds
_MOST_CHARS = 400
_CONTEXT_LINES = 4
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


class Fault(Record):
    """``kind`` in a few words, ``message`` as the engine wrote it, ``lines`` of the log that end with it."""

    kind: str
    message: str
    lines: tuple[str, ...]

    @property
    def summary(self) -> str:
        return f"{self.kind}: {self.message}"


def read_fault(log: Path, start: int = 0) -> Fault | None:
    """As ``find_fault``, of a log from byte ``start`` on."""
    return find_fault(read_from(log, start))


def find_fault(text: str) -> Fault | None:
    """The cause named first in the order above, or None."""
    return first_match([line.strip() for line in text.splitlines()], _FAULTS)


def read_from(log: Path, start: int) -> str:
    """A log from byte ``start`` on, as far as a fault is looked for; empty where it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def first_match(lines: Sequence[str], table: Sequence[tuple[str, str]]) -> Fault | None:
    """The fault of the first pattern of ``table``, of (kind, pattern), that any line matches."""
    for kind, pattern in table:
        known = re.compile(pattern)
        for number, line in enumerate(lines):
            match = known.search(line)
            if match:
                return fault_at(lines, number, kind, match[1])
    return None


def fault_at(lines: Sequence[str], number: int, kind: str, message: str) -> Fault:
    context = [line for line in lines[max(0, number - _CONTEXT_LINES) : number + 1] if line.strip()]
    return Fault(kind=kind, message=message.strip()[:_MOST_CHARS], lines=tuple(context))
