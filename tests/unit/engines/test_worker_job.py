"""Jobs and their text, without a server."""

from hypothesis import given
from hypothesis import strategies as st

from powerband.engines.worker_job import Counters, Detokenizer, Job


class Answers:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.ended: list[str] = []

    def tokens(self, ids: list[int], text: str) -> None:
        self.ids += ids
        self.text += text

    def end(self, reason: str) -> None:
        self.ended.append(reason)

    def fail(self, message: str) -> None:
        self.ended.append("failed: " + message)


def as_bytes(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


@given(st.text(min_size=1, max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=80))
def test_pieces_of_bytes_add_up_to_the_text(text: str, sizes: list[int]) -> None:
    """Whatever the cut, nothing is lost or shown twice (a replacement character at the end is held back)."""
    data = list((text.replace("\ufffd", "") + ".").encode())
    detokenizer, shown, place = Detokenizer(as_bytes), "", 0
    for size in [*sizes, len(data)]:
        shown += detokenizer.push(data[place : place + size])
        place += size
        if place >= len(data):
            break
    assert shown == bytes(data).decode()


def make(max_tokens: int, stop: frozenset[int] = frozenset()) -> tuple[Job, Answers, Counters]:
    answers, counters = Answers(), Counters()
    job = Job([1, 2, 3], max_tokens=max_tokens, stop_ids=stop, answer=answers, counters=counters, decode=as_bytes)
    return job, answers, counters


def test_an_answer_ends_at_its_length_and_takes_no_more() -> None:
    job, answers, counters = make(4)
    job.wait()
    job.start()
    assert job.give([65, 66]) is False
    assert job.give([67, 68, 69]) is True  # a guess of three, of which two fit
    assert job.give([70]) is True
    job.fail("late")
    assert (answers.ids, answers.text, answers.ended) == ([65, 66, 67, 68], "ABCD", ["length"])
    assert (counters.prompt_tokens, counters.output_tokens, counters.finished) == (3, 4, 1)
    assert counters.running == counters.waiting == 0


def test_an_answer_ends_before_a_stop_id() -> None:
    job, answers, _ = make(9, frozenset({67}))
    job.start()
    assert job.give([65, 66, 67, 68]) is True
    assert (answers.ids, answers.ended) == ([65, 66], ["stop"])


def test_gauges_follow_a_job() -> None:
    job, _, counters = make(2)
    job.wait()
    assert (counters.waiting, counters.running) == (1, 0)
    job.start()
    assert (counters.waiting, counters.running) == (0, 1)
    job.drop()
    assert (counters.waiting, counters.running, counters.finished) == (0, 0, 1)
