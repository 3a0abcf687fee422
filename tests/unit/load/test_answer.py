"""How many tokens each chunk held: by its own word, by the server's total, or by assumption, and which it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.load.answer import Answer
from powerband.load.sse import Event


def answer(chars: list[int], total: int | None = None, said: list[int] | None = None) -> Answer:
    """Chunks of these many characters at 10, 20, 30 ...; then a closing chunk with the total."""
    made = Answer()
    for n, count in enumerate(chars):
        made.add(10 * (n + 1), Event(text_chars=count, tokens=said[n] if said else None))
    made.add(10 * len(chars) + 1, Event(text_chars=0, finish="length", total_tokens=total))
    return made


def test_one_token_a_chunk_when_the_total_agrees() -> None:
    assert answer([3, 1, 4], total=3).settle() == ((10, 20, 30), (1, 1, 1), "exact")


def test_an_empty_chunk_is_a_token_when_the_total_says_so() -> None:
    """Half of a character has no text, and yet a token was made."""
    assert answer([3, 0, 4], total=3).settle() == ((10, 20, 30), (1, 1, 1), "exact")
    assert answer([3, 0, 4], total=2).settle() == ((10, 30), (1, 1), "exact")


def test_without_a_total_visible_chunks_count() -> None:
    assert answer([3, 0, 4]).settle() == ((10, 30), (1, 1), "unchecked")


def test_a_chunk_that_names_its_count_is_believed() -> None:
    assert answer([3, 9], total=5, said=[1, 4]).settle() == ((10, 20), (1, 4), "said")


def test_a_running_total_gives_each_chunk_its_count() -> None:
    made = Answer()
    for n, total in enumerate([2, 3, 6]):
        made.add(n, Event(text_chars=4, total_tokens=total))
    assert made.settle() == ((0, 1, 2), (2, 1, 3), "said")


def test_spare_tokens_go_by_length_of_text() -> None:
    # 9 tokens over 3 chunks: one each, 6 spare, by 2:1:0 of the characters
    assert answer([8, 4, 0], total=9).settle() == ((10, 20, 30), (5, 3, 1), "spread")


@pytest.mark.parametrize("total", [0, -5, 2**31, 10**18])
def test_a_total_that_cannot_be_is_as_good_as_none(total: int) -> None:
    assert answer([3, 0, 4], total=total).settle() == ((10, 30), (1, 1), "unchecked")


def test_a_prompt_of_a_length_that_cannot_be_is_not_told() -> None:
    made = Answer()
    for count in (-1, 2**40):
        made.add(1, Event(text_chars=1, prompt_tokens=count))
    assert made.prompt_tokens is None
    made.add(2, Event(text_chars=1, prompt_tokens=9))
    assert made.prompt_tokens == 9


def test_fewer_tokens_than_chunks_keep_the_first_and_the_last() -> None:
    times, counts, how = answer([1, 1, 1, 1, 1], total=3).settle()
    assert (times, counts, how) == ((10, 30, 50), (1, 1, 1), "fewer")


def test_a_role_and_a_closing_chunk_are_no_tokens() -> None:
    made = Answer()
    made.add(1, Event())
    made.add(2, Event(text_chars=5))
    made.add(3, Event(text_chars=0, finish="stop"))
    made.add(4, Event(total_tokens=1, prompt_tokens=7))
    assert made.settle() == ((2,), (1,), "exact")
    assert (made.finish, made.prompt_tokens) == ("stop", 7)


@pytest.mark.parametrize("total", [0, 1])
def test_an_answer_of_nothing_settles(total: int) -> None:
    assert answer([], total=total).settle()[:2] == ((), ())


@given(chars=st.lists(st.integers(0, 30), min_size=1, max_size=40), total=st.integers(1, 200))
def test_counts_sum_to_the_servers_total(chars: list[int], total: int) -> None:
    times, counts, _ = answer(chars, total=total).settle()
    assert sum(counts) == total
    assert all(count > 0 for count in counts)
    assert list(times) == sorted(set(times))
