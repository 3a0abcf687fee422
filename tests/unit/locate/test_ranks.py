"""Several ranks: who comes last to a collective spends least time in it."""

import numpy as np
import pytest

from powerband.locate.ranks import diagnose_ranks
from powerband.records.timeline import COMMUNICATION, KERNEL, Spans, Timeline


def rank(name: str, *work: tuple[int, int, int]) -> Timeline:
    """Pieces of work as (start, end, kind) in ns, one after the other."""
    start, end, kind = (np.array(column, dtype=np.int64) for column in zip(*work, strict=True))
    zeros = np.zeros(len(work), dtype=np.int64)
    none = Spans(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
    return Timeline(
        source=name, device="0", work_start_ns=start, work_end_ns=end, work_stream=zeros, work_kind=kind,
        work_name=zeros, work_launch=zeros - 1, calls=none, ops=none, waits=none, loads=none, marks=none,
        names=("k",), threads=(),
    )  # fmt: skip


FAST = rank("rank0", (0, 400, KERNEL), (400, 1000, COMMUNICATION))
SLOW = rank("rank1", (0, 950, KERNEL), (950, 1000, COMMUNICATION))


def test_the_rank_that_communicates_least_is_the_one_the_others_wait_for() -> None:
    last, found = diagnose_ranks([FAST, SLOW])
    assert last == 1
    assert found.verdict == "compute_bound"  # and not the 60 % communication of the rank that waits
    assert found.sources == ("trace rank0", "trace rank1")
    assert (
        found.notes[0] == "the others wait for rank1: communication takes up to 60.0 % of theirs and is mostly waiting"
    )
    assert "rank0: busy 100.0 %, exposed communication 60.0 %" in found.notes
    assert {part.name: part.share for part in found.breakdown}["exposed communication"] == pytest.approx(0.05)


def test_ranks_that_are_alike_and_a_rank_alone_are_said_to_be() -> None:
    assert diagnose_ranks([FAST, FAST])[1].notes[0].startswith("the ranks communicate alike (within 0.0 %")
    assert diagnose_ranks([FAST, FAST])[1].verdict == "communication_bound"
    silent = rank("a", (0, 10, KERNEL))
    assert diagnose_ranks([silent, silent])[1].notes[0] == "no rank communicates: shown is a alone"
    assert not any("rank" in note for note in diagnose_ranks([silent])[1].notes)
