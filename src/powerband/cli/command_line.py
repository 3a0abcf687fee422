"""The command line as it may be written down: keys and passwords are left out."""

import itertools
import re
import shlex
import sys
from collections.abc import Sequence

_KEY = "--api-key"
_PASSWORD = re.compile(r"(?<=://)[^/?#\s]*@")


def command_line() -> str:
    """How this process was called, to be kept beside what it measured."""
    return shlex.join(["powerband", *without_secrets(sys.argv[1:])])


def without_secrets(argv: Sequence[str]) -> list[str]:
    """``--api-key`` however it is shortened, and a user and password in an address."""
    shown, hide = [], False
    for word in argv:
        name, given, _ = word.partition("=")
        is_key = len(name) > len("--") and _KEY.startswith(name)
        if hide:
            shown.append("***")
        elif is_key and given:
            shown.append(f"{name}=***")
        else:
            shown.append(_PASSWORD.sub("***@", word))
        hide = is_key and not given and not hide
    return shown


def option_in(command: str, name: str) -> str | None:
    """What a kept command line gave for an option, however it was shortened; None where it gave nothing."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    found = ""
    for word, after in itertools.pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if len(option) > len("--s") and name.startswith(option):
            found = value if equals else after
    return found or None
