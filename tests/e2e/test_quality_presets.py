"""One quantisation, two tasks: a candidate whose code no longer parses passes as a chat model and is refused for code.

The stand-in servers speak vLLM's dialect. Both give the same probabilities, so that nothing but the answers differs.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from powerband.cli import main
from tests.support.answering import Answer, serving

GOOD = "```python\ndef f(x):\n    return x + 1\n```"
BAD = "```python\ndef f(x)\n    return x + 1\n```"  # a colon lost
PROMPTS = [f"Write Python function number {n}." for n in range(40)]
TEXTS = [" ".join(f"w{n * k % 31}" for k in range(30)) for n in range(1, 11)]


def coder(broken: int) -> Answer:
    """A server whose answers to the first ``broken`` prompts do not parse."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "coder"}]}
        if path == "/tokenize":
            text = body.get("prompt") or body["messages"][0]["content"]
            return 200, {"tokens": [len(word) for word in text.split()]}
        if path == "/v1/chat/completions":
            number = PROMPTS.index(body["messages"][0]["content"])
            text = BAD if number < broken else GOOD
            return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
        if path == "/v1/completions":
            rows = [{str(token): {"logprob": -0.5}, "99": {"logprob": -1.5}} for token in body["prompt"]]
            return 200, {"choices": [{"text": "", "prompt_logprobs": [None, *rows[1:]]}]}
        return 404, {"error": "no such page"}

    return answer


@pytest.fixture
def task(tmp_path: Path) -> str:
    path = tmp_path / "ours.jsonl"
    rows = [{"prompt": prompt} for prompt in PROMPTS] + [{"text": text} for text in TEXTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def verdict(
    capsys: pytest.CaptureFixture[str], home: Path, task: str, preset: str, broken: int
) -> tuple[int, dict[str, Any]]:
    with serving(coder(0)) as before, serving(coder(broken)) as after:
        code = main(
            ["verify", before, after, "--quality", "--task", task, "--limits", preset, "--json", "--quiet",
             "--home", str(home)]
        )  # fmt: skip
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found["quality"]


def test_code_that_stopped_parsing_is_refused_for_code_and_passed_for_chat(
    tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """8 of 40 answers lost a colon: a share of 0.2, with 0.1 to 0.3 at 90 % by the binomial."""
    code, chat = verdict(capsys, tmp_path, task, "chat", 8)
    assert (code, chat["verdict"]) == (0, "passed")
    code, refused = verdict(capsys, tmp_path, task, "code", 8)
    assert (code, refused["verdict"]) == (1, "failed")
    assert refused["reason"].startswith("broken syntax more 0.2 ")
    broken = next(metric for metric in refused["metrics"] if metric["name"] == "broken_syntax_more")
    assert broken["allowed"] == 0.02
    assert broken["interval"]["low"] == pytest.approx(0.1)
    assert broken["interval"]["high"] == pytest.approx(0.3)
    others = {metric["verdict"] for metric in refused["metrics"] if metric["name"] != "broken_syntax_more"}
    assert others == {"passed"}
    assert "parsed before" in refused["worst"][0]["why"]


def test_code_that_still_parses_passes_for_code(tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = verdict(capsys, tmp_path, task, "code", 0)
    assert (code, found["verdict"]) == (0, "passed"), found["reason"]
