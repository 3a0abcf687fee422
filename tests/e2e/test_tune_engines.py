"""powerband tune over two engines, and for another goal than speed, on servers whose step times are known.

MLX is a stand-in: the adapter starts, reads and stops the fake server in MLX's dialect, with a step of 2 ms.
"""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.support.scripted_engines import VARIABLES, install
from tests.support.sessions import TRAFFIC, run

# Steps of the fake take 30 ms: no number of slots brings a token within 20 ms, as every step of the other does.
SLOW = ["--set", "fake.step_ms=30"]
COMMON = ["--traffic", TRAFFIC, "--repeats", "2", "--window", "1s", "--json"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(VARIABLES["mlx"], str(install("mlx", tmp_path)))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    return str(folder)


def test_the_engine_is_one_of_the_choices(tmp_path: Path, model: str) -> None:
    argv = [
        "tune",
        model,
        "--engine",
        "fake,mlx",
        *SLOW,
        "--slo",
        "tpot=20ms",
        "--task",
        "none",
        "--budget",
        "35s",
        "--requests",
        "8",
    ]
    done = run(*argv, *COMMON, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    first, second = found["trials"][:2]
    assert [(one["purpose"], one["config"]["engine"]) for one in (first, second)] == [
        ("baseline", "fake"),
        ("baseline", "mlx"),
    ]
    assert first["config"]["knobs"]["step_ms"] == 30.0
    assert "step_ms" not in second["config"]["knobs"]
    assert found["baseline"]["config"]["engine"] == "fake"
    assert found["best"]["config"]["engine"] == "mlx"
    assert found["best"]["metrics"]["attainment"] > 0.9 > first["measured"]["attainment"]
    db = sqlite3.connect(tmp_path / ".powerband" / "journal.sqlite")
    keys = [key for (key,) in db.execute("SELECT key FROM trial ORDER BY n")]
    db.close()
    assert keys[:2] == ["baseline", "mlx-baseline"]
    assert keys[-4:] == ["verify-1-before", "verify-1-after", "verify-2-after", "verify-2-before"]
    # Another engine's answers are others', and no gate has seen them.
    assert (done.returncode, found["verdict"]["verdict"]) == (1, "undecided")
    assert "another model or engine gives other answers" in found["verdict"]["reason"]
    again = run("tune", "--resume", "--json", "--task", "none", cwd=tmp_path)
    assert json.loads(again.stdout)["trials"] == found["trials"], again.stderr


def test_an_engine_that_does_not_start_takes_no_part(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES["mlx"], "/bin/false")
    argv = ["tune", model, "--engine", "fake,mlx", "--slo", "ttft=1s,tpot=100ms", "--task", "none"]
    done = run(*argv, "--budget", "10s", "--requests", "8", *COMMON, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert [one["status"] for one in found["trials"][:2]] == ["done", "failed"]
    assert found["best"]["config"]["engine"] == "fake"
    report = json.loads(run("report", "--json", cwd=tmp_path).stdout)["report"]
    assert "mlx took no part" in Path(tmp_path, report).read_text()


def test_the_cost_of_tokens_may_be_what_is_sought(tmp_path: Path) -> None:
    argv = ["tune", "fake", "--engine", "fake", "--slo", "ttft=400ms,tpot=100ms", "--objective", "cost"]
    argv += ["--budget", "42s", *COMMON]
    refused = run(*argv, cwd=tmp_path)
    assert refused.returncode == 2
    assert "the cost of tokens needs a price" in refused.stderr
    done = run(*argv, "--price", "3.6", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gain"]["metric"] == "goodput_per_s_per_card"
    # One card at 0.001 a second, over the tokens of that second's good answers, 8 each.
    assert found["costs"]["best"] == pytest.approx(0.001 / (8 * found["best"]["metrics"]["goodput_per_s"]) * 1e6)
    assert found["costs"]["best"] < found["costs"]["baseline"]
