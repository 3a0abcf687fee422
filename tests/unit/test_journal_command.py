"""The journal and report commands over every kind of session, none of which was run here."""

import json
from pathlib import Path

import pytest

from powerband.cli import main
from powerband.stores.sqlite import Journal

LOOP = '{"model": "m", "engine": "fake"}'


def said(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("command", ["load", "calibrate"])
def test_a_session_that_keeps_its_command_line_is_listed_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    journal = Journal(tmp_path)
    first = journal.begin("loop", LOOP)
    other = journal.begin(command, f"powerband {command} 'a b'")
    journal.close()
    code, out, _ = said(capsys, "journal", "--json", "--home", tmp_path)
    assert code == 0
    assert {row["session_id"]: row["request"] for row in json.loads(out)} == {
        first.session_id: json.loads(LOOP),
        other.session_id: f"powerband {command} 'a b'",
    }
    code, out, _ = said(capsys, "journal", other.session_id, "--json", "--home", tmp_path)
    assert (code, len(json.loads(out))) == (0, 1)
