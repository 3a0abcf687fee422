"""Files that nobody can read: said in the words of a person, not in the interpreter's."""

import json
from pathlib import Path

import pytest

from powerband.cli import main

BYTES = b"\x9f\x92\x00\xff" * 20
DEEP = "[" * 200_000
LEAKS = ("b'", "codec", "recursion", "Errno", "Traceback", "unicode string")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    for name, text in (
        ("good", json.dumps({"model_type": "llama", "vocab_size": 100, **shape}).encode()),
        ("deep", DEEP.encode()),
        ("bytes", BYTES),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(text)
    (tmp_path / "bytes.json").write_bytes(BYTES)
    (tmp_path / "bytes.toml").write_bytes(BYTES)
    (tmp_path / "deep.json").write_text('{"traceEvents":[' + DEEP)
    (tmp_path / "deep.toml").write_text("a=" + DEEP[:5000])
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8b\x08\x00" + b"a" * 20)
    (tmp_path / "empty.sqlite").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("account deep --device h100", "nested too deeply"),
        ("account bytes --device h100", "not UTF-8 text"),
        ("account good --device ./bytes.toml", "not UTF-8 text"),
        ("account good --device ./deep.toml", "nested too deeply"),
        ("account good --device h100 --traffic good", "is a folder"),
        ("locate bytes.json", "9f 92 00 ff"),
        ("locate deep.json", "nested too deeply"),
        ("locate broken.json.gz", "compressed data"),
        ("locate empty.sqlite", "nsys export"),
        ("locate bytes.toml", "not UTF-8 text"),
        ("locate deep.toml", "nested too deeply"),
        ("simulate --config bytes.toml", "not UTF-8 text"),
        ("simulate --config deep.toml", "nested too deeply"),
        ("simulate --config none.toml", "No such file"),
    ],
)
def test_an_unreadable_file_is_told_in_plain_words(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: str, said: str
) -> None:
    monkeypatch.chdir(files)
    assert main(asked.split()) == 2
    err = capsys.readouterr().err
    assert said in err
    assert not [leak for leak in LEAKS if leak in err], err


def test_empty_traffic_is_called_empty(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files)
    assert main(["account", "good", "--device", "h100", "--traffic", ""]) == 2
    assert "the traffic is empty" in capsys.readouterr().err
