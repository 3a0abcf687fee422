"""A loop on a server that runs already: it names the planted cause, changes nothing, and leaves the server running."""

import json
from pathlib import Path

import pytest

from tests.support.faking import fake_process
from tests.support.sessions import run

# The rates put each server well beyond what the planted limit allows, and well within what it would do without it.
PLANTED = {
    "no_batching": (["--slots", "1"], "in=50,out=20,arrivals=poisson(8/s)"),
    "queueing": (["--slots", "3", "--step-ms", "20"], "in=50,out=20,arrivals=poisson(12/s)"),
    "tokenizer_bound": (["--slots", "32", "--tokenizer-ms", "120"], "in=50,out=10,arrivals=poisson(9/s)"),
    "kv_pressure": (["--slots", "32", "--kv-tokens", "260"], "in=50,out=30,arrivals=poisson(12/s)"),
    "idle_no_work": (["--slots", "8"], "in=20,out=4,arrivals=constant(1/s)"),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_the_planted_cause_is_named(tmp_path: Path, cause: str) -> None:
    options, traffic = PLANTED[cause]
    with fake_process(*options) as (url, process):
        argv = ["loop", url, "--traffic", traffic, "--slo", "ttft=1s,tpot=200ms", "--window", "8s", "--json"]
        done = run(*argv, cwd=tmp_path)
        assert process.poll() is None, "the attached server was stopped"
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["locate"]["verdict"] == cause, json.dumps(document["locate"], indent=1)
    assert document["rounds"] == []
    assert "cannot be changed" in document["tune"]["stopped_because"]


def test_a_server_that_wants_a_key_is_sent_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: the key opened /v1/models, and every request of the run was then sent without it."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with fake_process("--slots", "8", "--api-key", "secret") as (url, _):
        done = run("loop", url, "--traffic", "in=20,out=4,arrivals=constant(4/s)", "--window", "2s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
