"""Judging an answer by itself: right, repetitive, broken."""

import pytest

from powerband.verify.answers import is_broken, is_repetitive, is_right


@pytest.mark.parametrize(
    ("expected", "output", "right"),
    [
        ("84", "12 * 7 = 84", True),
        ("84", "The answer is 84.0 pencils.", True),
        ("84", "84 or 85", False),
        ("1/2", "so the chance is 0.5", True),
        ("1,000", "it is 1000.", True),
        ("-3", "x = -3", True),
        ("72", "", False),
        ("Paris", "The capital of France is: Paris.", True),
        ("Paris", "paris", True),
        ("Paris", "Lyon and Paris are cities", False),
        ("10.5", "10,5", False),
    ],
)
def test_is_right(expected: str, output: str, right: bool) -> None:
    assert is_right(expected, output) is right


def test_circles() -> None:
    assert is_repetitive("the cat sat on the mat and " * 10)
    assert not is_repetitive("no no no")
    assert not is_repetitive(" ".join(f"word{k}" for k in range(100)))


@pytest.mark.parametrize(
    ("text", "ended", "broken"),
    [
        ("```python\ndef f():\n    return 1\n```", True, False),
        ("```python\ndef f()\n    return 1\n```", True, True),
        ("def f():\n    return 1", True, False),
        ("I cannot write code.", True, None),
        ("```python\ndef f():\n    return (1,\n", False, False),
        ("```python\nx = = 1\ny = 2\ndef f():\n    return (1,\n", False, True),
        ("```python\n\n```", True, True),
    ],
)
def test_python(text: str, ended: bool, broken: bool | None) -> None:
    assert is_broken(text, "python", ended=ended) is broken


def test_json_and_nothing() -> None:
    assert is_broken('{"a": 1}', "json", ended=True) is False
    assert is_broken('{"a": 1', "json", ended=False) is True
    assert is_broken("anything", "none", ended=True) is None
