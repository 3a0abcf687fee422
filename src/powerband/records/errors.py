"""The errors, drawn here once.

PowerbandError              carries a message and a hint; the command line prints both on two lines
├── RequestError      (2)   what was asked is wrong or cannot be read: unknown name, missing file, bad value
└── MachineError      (3)   the machine or an engine failed
    └── EngineError   (3)   an engine did not start, died or hung; carries the last lines of its log

Exit code 1 is no error: it is the answer "no" (does not fit, not better, gate failed).
"""

import difflib
from collections.abc import Iterable


class PowerbandError(Exception):
    """What happened, with the value seen; ``hint`` says what to do about it."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class RequestError(PowerbandError):
    """The request is wrong: nothing was started."""

    exit_code = 2


class MachineError(PowerbandError):
    """The machine failed: no memory, no disk, a journal that cannot be written."""


class EngineError(MachineError):
    """An engine failed; ``log_tail`` holds the last lines it wrote."""

    def __init__(self, message: str, *, hint: str = "", log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.log_tail = log_tail


def in_words(error: Exception) -> str:
    """What a failed read says to a person: no error number, no codec, no word of the interpreter's."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError) or isinstance(error.__context__, UnicodeDecodeError):  # msgspec wraps it
        return "it is not UTF-8 text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def unknown_name(kind: str, value: str, accepted: Iterable[str]) -> RequestError:
    """The error for a name that is not in a closed list; the hint lists near names first, else all of them."""
    names = sorted(accepted)
    near = difflib.get_close_matches(value.lower(), names, n=5, cutoff=0.5)
    listed = near or names
    more = f" (and {len(names) - 12} more)" if len(listed) > 12 else ""
    return RequestError(
        f"unknown {kind} {value!r}",
        hint=("did you mean " if near else "accepted: ") + ", ".join(listed[:12]) + more,
    )
