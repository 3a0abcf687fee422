"""No key and no password gets into what is kept of a command line."""

import pytest

from powerband.cli.command_line import without_secrets


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["load", "u", "--api-key", "sesame", "--quiet"], ["load", "u", "--api-key", "***", "--quiet"]),
        (["load", "u", "--api-key=sesame"], ["load", "u", "--api-key=***"]),
        (["load", "u", "--api-k", "sesame"], ["load", "u", "--api-k", "***"]),
        (["load", "u", "--a=sesame"], ["load", "u", "--a=***"]),
        (["load", "u", "--api-key", "--api-key", "m"], ["load", "u", "--api-key", "***", "m"]),
        (["load", "http://me:sesame@h:1/v1"], ["load", "http://***@h:1/v1"]),
        (["loop", "--set", "url=https://me:ses@ame@h"], ["loop", "--set", "url=https://***@h"]),
        (["load", "http://h/a@b", "--", "x@y"], ["load", "http://h/a@b", "--", "x@y"]),
    ],
)
def test_secrets_are_left_out(argv: list[str], shown: list[str]) -> None:
    assert without_secrets(argv) == shown
