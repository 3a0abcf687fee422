"""The built-in tasks and a user's file; the judge command and its time limit."""

import sys
import time
from pathlib import Path

import pytest

from powerband.load.quality.judge import judge_answers
from powerband.load.quality.tasks import PRESETS, load_task
from powerband.records.errors import RequestError
from powerband.records.quality import QualityAnswer, QualityTask


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_enough_to_ask(preset: str) -> None:
    task = load_task(preset)
    assert task.preset == preset
    assert len(task.prompts) >= 16
    assert len(task.passages) >= 16
    assert len({one.prompt for one in task.prompts}) == len(task.prompts)
    assert all(one.answer is not None for one in task.prompts) == (preset == "maths")
    assert (task.syntax == "python") == (preset == "code")


def test_held_out_text_is_enough() -> None:
    assert sum(len(text) for text in load_task("chat").passages) > 15_000
    assert all(len(text) < 900 for text in load_task("chat").passages)


def test_a_file_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "ours.jsonl"
    path.write_text('{"prompt": "2+2?", "answer": 4}\n\n{"prompt": "hello"}\n{"text": "held out"}\n')
    task = load_task(str(path), limits="maths")
    assert task.preset == "maths"
    assert [one.answer for one in task.prompts] == ["4", None]
    assert task.passages == ("held out",)
    assert len(load_task(str(path), most=1).prompts) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "is empty"), ("{}\n", "line 1 holds neither"), ("[1]\n", "line 1 is no JSON object"), ("{", "line 1 is no")],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(RequestError, match=said):
        load_task(str(path))


def test_unknown_names_list_near_ones() -> None:
    with pytest.raises(RequestError) as caught:
        load_task("chatt")
    assert "chat" in caught.value.hint
    with pytest.raises(RequestError, match="unknown preset"):
        load_task("chat", limits="loose")


def judged(tmp_path: Path, script: str, outputs: list[str], timeout_s: float = 5.0) -> list[bool | None]:
    judge = tmp_path / "judge.py"
    judge.write_text(script)
    base = load_task("maths", most=len(outputs), judge=f"{sys.executable} {judge}", judge_timeout_s=timeout_s)
    answers = tuple(QualityAnswer(text=text, ended=True) for text in outputs)
    return [answer.right for answer in judge_answers(base, answers)]


def test_a_command_judges(tmp_path: Path) -> None:
    script = "import json, sys\nd = json.load(sys.stdin)\nsys.exit(d['output'] != d['answer'])\n"
    assert judged(tmp_path, script, ["84", "35"]) == [True, False]


def test_a_judge_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    script = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    began = time.monotonic()
    assert judged(tmp_path, script + "time.sleep(60)\n", ["84"], timeout_s=0.5) == [False]
    assert time.monotonic() - began < 10


def test_a_judge_that_cannot_run_is_a_wrong_request() -> None:
    task = load_task("maths", most=1, judge="/no/such/judge")
    with pytest.raises(RequestError, match="cannot run the judge"):
        judge_answers(task, (QualityAnswer(text="1", ended=True),))


def test_no_judge_leaves_answers_as_they_are() -> None:
    task: QualityTask = load_task("chat", most=1)
    answers = (QualityAnswer(text="1", ended=True),)
    assert judge_answers(task, answers) is answers


@pytest.mark.parametrize(
    ("data", "said"), [(b'{"text":' + b"[" * 200_000, "nested too deeply"), (b"\x9f\x92\x00", "not UTF-8 text")]
)
def test_an_unreadable_task_is_told_in_plain_words(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "task.jsonl").write_bytes(data)
    with pytest.raises(RequestError, match=said):
        load_task(str(tmp_path / "task.jsonl"))
