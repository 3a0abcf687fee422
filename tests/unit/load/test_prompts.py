"""Prompts: exact counts, and prefixes that are shared where the workload says so and nowhere else."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.load.prompts import Pool, Prompts
from powerband.load.words import english_like
from powerband.records.workload import RequestSpec, Workload

IDS = [(n * n + 7 * n) % 97 for n in range(400)]


def pool(ids: list[int] = IDS) -> Pool:
    units = [b"%d" % token for token in ids]
    return Pool(units, sorted(set(units)), b",")


def workload(*requests: RequestSpec, block_tokens: int = 0) -> Workload:
    return Workload(requests=requests, source="test", block_tokens=block_tokens)


def spec(tokens: int, **fields: object) -> RequestSpec:
    return RequestSpec(offset_ns=0, input_tokens=tokens, output_tokens=1, **fields)  # type: ignore[arg-type]


def prompts(load: Workload, salt: int = 0) -> list[list[bytes]]:
    made = Prompts(pool(), load, salt)
    return [made.of(index).split(b",") for index in range(len(load.requests))]


def shared(left: list[bytes], right: list[bytes]) -> int:
    """Length of the common prefix, by brute force."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(1, 1500), min_size=1, max_size=20), salt=st.integers(0, 2**40))
def test_every_prompt_has_its_exact_count(lengths: list[int], salt: int) -> None:
    made = prompts(workload(*map(spec, lengths)), salt)
    assert [len(prompt) for prompt in made] == lengths


def test_no_two_prompts_share_more_than_a_part_of_their_head() -> None:
    """1,000 prompts over 97 distinct ids are numbered by two ids, so that at most the first one can agree."""
    made = prompts(workload(*[spec(60)] * 1000))
    heads = {tuple(prompt[:2]) for prompt in made}
    assert len(heads) == 1000


def test_two_runs_send_different_prompts() -> None:
    load = workload(*[spec(300)] * 5)
    assert all(shared(a, b) < 3 for a, b in zip(prompts(load, 1), prompts(load, 2), strict=True))
    assert prompts(load, 1) == prompts(load, 1)


def test_a_prefix_id_is_shared_for_the_shorter_length() -> None:
    load = workload(
        spec(300, prefix_id=4, prefix_tokens=200),
        spec(280, prefix_id=4, prefix_tokens=120),
        spec(300, prefix_id=5, prefix_tokens=200),
    )
    first, second, other = prompts(load)
    assert shared(first, second) == 120
    assert shared(first, other) == 0
    assert [len(p) for p in (first, second, other)] == [300, 280, 300]


def test_equal_blocks_are_equal_tokens() -> None:
    load = workload(
        spec(70, block_ids=(1, 2, 3)), spec(64, block_ids=(1, 2)), spec(70, block_ids=(9, 2, 3)), block_tokens=32
    )
    first, second, other = prompts(load)
    assert shared(first, second) == 64
    assert shared(first, other) == 0
    assert first[32:64] == other[32:64]
    assert [len(p) for p in (first, second, other)] == [70, 64, 70]


def test_a_template_is_taken_off_and_words_are_counted_in_tokens() -> None:
    words = english_like(500, np.random.default_rng(0)).split()
    text = Pool([word.encode() for word in words], sorted({word.encode() for word in words}), b" ")
    made = Prompts(text, workload(spec(130)), 0, extra_tokens=30, tokens_per_unit=1.25)
    assert len(made.of(0).split(b" ")) == 80  # (130 - 30) / 1.25
