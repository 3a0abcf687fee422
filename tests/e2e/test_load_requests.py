"""What ``powerband load`` refuses, and what it says of a run that did not go as asked."""

import os
import signal
from pathlib import Path

import pytest

from powerband.cli import main
from powerband.cli.load_runs import LoadRun
from powerband.records.columns import Columns
from powerband.records.value import Missing
from powerband.report.text import render_metrics
from tests.support.scripted_server import END, HEAD, HOLD, Script, ScriptedServer, Seen, chunk, reply, token
from tests.unit.load.test_damaged_run import RUN

DONE = b"data: [DONE]\n\n"


def two_tokens(_: int, seen: Seen) -> Script:
    return [
        (0.0, HEAD),
        (0.002, chunk(token())),
        (0.002, chunk(token("b", "length"))),
        (0.0, chunk(DONE)),
        (0.0, END),
    ]


def said(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out, err


def load(url: str, home: Path, *more: str) -> list[str]:
    return ["load", url, "--model", "m", "--home", str(home), "--requests", "3", "--quiet", *more]


OPEN = ("--traffic", "in=4,out=2,arrivals=constant(50/s)")
CLOSED = ("--traffic", "in=4,out=2,concurrency=1")


@pytest.mark.parametrize("traffic", [OPEN, CLOSED])
@pytest.mark.parametrize("warmup", ["1e9", "inf"])
def test_a_warm_up_longer_than_the_run_is_refused_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], traffic: tuple[str, str], warmup: str
) -> None:
    with ScriptedServer(two_tokens).running() as server:
        code, out, err = said(capsys, *load(server.url, tmp_path, *traffic, "--warmup", warmup))
    assert (code, out, server.seen) == (2, "", [])
    assert ("1e+09" if warmup == "1e9" else "inf") in err
    assert not (tmp_path / "journal.sqlite").exists()


def test_a_warm_up_that_turns_out_too_long_gives_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(two_tokens).running() as server:
        code, out, err = said(capsys, *load(server.url, tmp_path, *CLOSED, "--warmup", "60"))
        (run,) = (tmp_path / "runs").iterdir()
        assert (code, out) == (2, "")
        assert "--warmup 60 leaves none of the 3 requests" in err
        assert f"--show {run.name}" in err
    code, out, _ = said(capsys, "load", "--show", run.name, "--home", tmp_path)
    assert code == 0
    assert "3 of 3 requests completed" in out
    assert said(capsys, "load", "--show", run.name, "--home", tmp_path, "--warmup", "60")[0] == 2


def test_no_request_counted_shows_no_rate() -> None:
    empty = LoadRun(RUN, lambda: iter(()), Columns())
    text = render_metrics(empty.metrics(None), None, Missing(missing="killed"))
    assert "no request was counted" in text
    assert not any(line.split()[-1:] == ["0"] for line in text.splitlines())


ODD_URLS = [
    "http://a..b:1",
    "http://" + "a" * 64 + ".org",
    "http://a\udcff:1",
    "http://localhost:1/\udcff",
    "http://localhost:1/a b",
    "http://local host:1",
]


@pytest.mark.parametrize("url", ODD_URLS)
@pytest.mark.parametrize("more", [[], ["--model", "m"]], ids=["", "model"])
def test_a_host_that_is_none_is_a_wrong_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, more: list[str]
) -> None:
    code, out, err = said(capsys, "load", url, *more, "--home", tmp_path, *OPEN, "--requests", "2", "--quiet")
    assert (code, out) == (2, "")
    assert "URL" in err
    assert not (tmp_path / "journal.sqlite").exists()


@pytest.mark.parametrize("url", ODD_URLS)
def test_locate_and_loop_say_the_same_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    for argv in (["locate", url, "--for", "1s"], ["loop", url, *OPEN], ["loop", "m", "--set", f"url={url}", *OPEN]):
        engine = ["--engine", "openai"] if argv[0] == "loop" else []
        code, out, err = said(capsys, *argv, *engine, "--home", tmp_path)
        assert (code, out) == (2, ""), argv
        assert err.splitlines()[-2].startswith("error: "), err
        assert "address" in err or "URL" in err or "no file" in err
        assert not (tmp_path / "journal.sqlite").exists()


def test_an_argument_that_is_no_utf8_is_a_wrong_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(two_tokens).running() as server:
        code, out, err = said(capsys, *load(server.url, tmp_path, *OPEN, "--model", "m\udcff"))
    assert (code, out) == (2, "")
    assert "UTF-8" in err


@pytest.mark.parametrize("scheme", ["http://", "https://", ""])
def test_a_password_in_the_address_is_refused_and_neither_shown_nor_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    """Also in a home that is there already, and where the rest of the address is wrong as well."""
    for host in ("127.0.0.1:9", "a..b:1", "127.0.0.1:port", "[::1"):
        url = f"{scheme}user:sesame@{host}"
        odd = ["--engine", "openai", "--set", f"url={url}"]
        calls = [["load", url, "--model", "m"], ["load", url], ["loop", "m", *odd], ["tune", "m", *odd]]
        if scheme:  # by which it is told from a model's or a file's name
            calls += [["loop", url], ["locate", url, "--for", "1s"], ["locate", url, "--for", "1s", "--prove"]]
        for argv in calls:
            code, out, err = said(capsys, *argv, *OPEN, "--home", tmp_path)
            assert (code, out) == (2, ""), (argv, err)
            assert "sesame" not in err, (argv, err)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"sesame" in path.read_bytes() for path in kept)


def test_the_hint_for_a_password_names_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "load", "http://user:pw@127.0.0.1:9", "--model", "m", *OPEN, "--home", tmp_path)
    assert code == 2
    assert "--api-key" in err.splitlines()[-1]


def test_a_key_in_the_query_is_neither_shown_nor_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://127.0.0.1:9/v1?api_key=sesame"
    code, _, err = said(capsys, "load", url, "--model", "m", *OPEN, "--home", tmp_path)
    assert code == 2
    assert "sesame" not in err
    assert not (tmp_path / "journal.sqlite").exists()


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "--api-key"), (403, "--api-key"), (503, "loading"), (429, "wait"), (404, "--endpoint")]
)
def test_the_hint_fits_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, hint: str) -> None:
    with ScriptedServer(lambda n, seen: [(0.0, reply(status, b"{}"))]).running() as server:
        code, _, err = said(capsys, *load(server.url, tmp_path, *CLOSED))
    assert code == 3
    assert f"http_{status}" in err.splitlines()[-2]
    assert hint in err.splitlines()[-1]


def test_the_hint_of_a_timeout_is_more_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(lambda n, seen: [(0.0, HOLD)]).running() as server:
        code, _, err = said(capsys, *load(server.url, tmp_path, *CLOSED, "--timeout", "0.1"))
    assert code == 3
    assert "--timeout" in err.splitlines()[-1]


def test_a_search_that_is_stopped_by_hand_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stop_at_ten(number: int, seen: Seen) -> Script:
        if number == 10:
            os.kill(os.getpid(), signal.SIGINT)
        return two_tokens(number, seen)

    find = ("--find", "max_goodput_rate", "--slo", "ttft=5s")
    with ScriptedServer(stop_at_ten).running() as server:
        code, out, _ = said(capsys, *load(server.url, tmp_path, *OPEN, *find))
    assert code == 130
    assert "no highest rate found" in out


@pytest.mark.parametrize("command", ["loop", "tune"])
def test_a_server_that_is_down_has_no_log_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, _, err = said(capsys, command, "http://127.0.0.1:9", *OPEN, "--requests", "4", "--home", tmp_path)
    assert code == 3
    assert "log" not in err.splitlines()[-1]
    assert "127.0.0.1:9" in err.splitlines()[-1]
