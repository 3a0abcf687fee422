"""Reading the user's text, and choosing samples of it."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.quantize.calibration import choose, digest, shares, take_calibration
from powerband.quantize.texts import Sample, kind_of, read_samples
from powerband.records.errors import RequestError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_jsonl_is_read_by_any_of_its_usual_names(tmp_path: Path) -> None:
    lines = [
        {"text": "plain"},
        {"prompt": "ask", "answer": "told"},
        {"instruction": "do", "output": "done"},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
        {"request": {"messages": [{"role": "user", "content": [{"type": "text", "text": "in parts"}]}]}},
    ]
    found = read_samples(write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines))))
    assert [sample.text for sample in found] == ["plain", "ask\ntold", "do\ndone", "hi\nhello", "in parts"]
    assert found[3].messages[0] == {"role": "user", "content": "hi"}
    assert found[3].kind == "chat"


def test_a_sharegpt_array_is_read_as_conversations(tmp_path: Path) -> None:
    said = [{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}]
    (found,) = read_samples(write(tmp_path / "s.json", json.dumps(said)))
    assert [message["role"] for message in found.messages] == ["user", "assistant"]


def test_prompts_are_read_from_the_log_of_a_running_server(tmp_path: Path) -> None:
    log = (
        "INFO 11-29 10:00:00 [logger.py:41] Received request cmpl-1: prompt: 'It\\'s a test\\nwith lines', params: X\n"
        "INFO 11-29 10:00:01 [engine.py:9] Avg prompt throughput: 3 tokens/s\n"
        "INFO 11-29 10:00:02 [logger.py:41] Received request cmpl-2: prompt: \"say 'yes'\", params: X\n"
    )
    found = read_samples(write(tmp_path / "serve.log", log))
    assert [sample.text for sample in found] == ["It's a test\nwith lines", "say 'yes'"]


def test_plain_text_is_cut_into_passages_and_nothing_is_lost(tmp_path: Path) -> None:
    paragraphs = ["short one."] * 200 + ["long " * 3000]
    found = read_samples(write(tmp_path / "book.txt", "\n\n".join(paragraphs)))
    assert all(len(sample.text) <= 4000 for sample in found)
    assert sum(len(sample.text) >= 1200 for sample in found) >= len(found) - 1
    assert "".join(sample.text for sample in found).count("short one.") == 200
    assert "".join(sample.text for sample in found).count("long") == 3000


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "no text"), ("\n\n  \n", "no text"), ('{"a": 1}\n', "no text"), ('{"text": "x"}\n{broken\n', "line 2")],
    ids=["empty", "blank", "no text field", "broken line"],
)
def test_a_file_without_text_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read_samples(write(tmp_path / "x.jsonl", text))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(RequestError, match="UTF-8"):
        read_samples(tmp_path / "x")
    with pytest.raises(RequestError, match="cannot read"):
        read_samples(tmp_path / "absent")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import os\n\ndef main():\n    return 1\n", "code"),
        ("Solve 3 = 2 + 1 and prove it.", "maths"),
        ('{"a": 1, "b": 2}', "data"),
        ("A quiet morning by the sea.", "prose"),
    ],
)
def test_kinds_are_told_by_how_text_looks(text: str, kind: str) -> None:
    assert kind_of(text) == kind


def samples_of(counts: dict[str, int]) -> list[Sample]:
    return [
        Sample(text=f"{kind} {'word ' * (number + 1)}", kind=kind) for kind, count in counts.items()
        for number in range(count)
    ]  # fmt: skip


def test_a_rare_kind_is_not_lost_and_the_common_one_keeps_its_share() -> None:
    found = samples_of({"chat": 960, "code": 40})
    taken = Counter(sample.kind for sample in choose(found, 100, seed=3))
    assert taken.total() == 100
    assert 2 <= taken["code"] <= 8  # 4 by its share


def test_the_same_seed_takes_the_same_samples_and_another_seed_others() -> None:
    found = samples_of({"chat": 300, "code": 100})
    assert digest(choose(found, 50, 7)) == digest(choose(found, 50, 7))
    assert digest(choose(found, 50, 7)) != digest(choose(found, 50, 8))


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3)), st.integers(1, 500), min_size=1, max_size=12
    ),
    st.integers(1, 400),
)
def test_shares_add_up_and_never_exceed_what_is_there(sizes: dict[tuple[str, int], int], wanted: int) -> None:
    wanted = min(wanted, sum(sizes.values()))
    given_out = shares(sizes, wanted)
    assert sum(given_out.values()) == wanted
    assert all(0 <= given_out[key] <= sizes[key] for key in sizes)
    if len(sizes) <= wanted:
        assert all(given_out[key] >= 1 for key in sizes)


def test_few_and_cut_samples_are_said(tmp_path: Path) -> None:
    text = "\n".join(json.dumps({"text": "word " * 100}) for _ in range(5))
    _, described = take_calibration(
        write(tmp_path / "c.jsonl", text), samples=128, sequence_tokens=16, seed=0, reference=None
    )
    assert described.samples == 5
    assert described.tokens == 5 * 16
    assert any("below 32" in warning for warning in described.warnings)
    assert any("longer than 16" in warning for warning in described.warnings)
    assert described.distance is None


@pytest.mark.parametrize("text", ["[" * 200_000, '{"text":' + "[" * 200_000])
def test_json_nested_too_deeply_is_refused_in_plain_words(tmp_path: Path, text: str) -> None:
    with pytest.raises(RequestError, match="nested too deeply"):
        read_samples(write(tmp_path / "deep.json", text))
