"""No key and no password gets into what is kept of a command line."""

import pytest

from powerband.cli.command_line import option_in, without_secrets


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


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("powerband load http://h --slo ttft=1s,tpot=50ms --quiet", "ttft=1s,tpot=50ms"),
        ("powerband load http://h --slo=ttft=1s", "ttft=1s"),
        ("powerband load http://h --sl 'ttft=1 s'", "ttft=1 s"),
        ("powerband load http://h --slo ttft=1s --slo ttft=2s", "ttft=2s"),  # as the command itself took it
        ("powerband load http://h --seed 7 --slow x", None),
        ("powerband load http://h --slo", None),
        ("powerband load 'http://h", None),  # no command line at all
        ("", None),
    ],
)
def test_an_option_is_read_back_from_a_kept_command(command: str, value: str | None) -> None:
    assert option_in(command, "--slo") == value
