"""The distance between two bodies of text: its limits by arithmetic, its noise, and what it finds far."""

import json
import math
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.quantize.calibration import take_calibration
from powerband.quantize.distance import jensen_shannon, measure_distance, script_of, tokens_of

COUNTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 50), min_size=1).map(Counter)


def test_divergence_by_hand() -> None:
    assert jensen_shannon(Counter("ab"), Counter("ab")) == 0
    assert jensen_shannon(Counter("aa"), Counter("bb")) == pytest.approx(1.0)
    # p = (1, 0), q = (1/2, 1/2): m = (3/4, 1/4); (log2(4/3) + log2(2/3)/2 + log2(2)/2) / 2
    by_hand = (math.log2(4 / 3) + 0.5 * math.log2(2 / 3) + 0.5 * 1) / 2
    assert jensen_shannon(Counter("aa"), Counter("ab")) == pytest.approx(by_hand)


@settings(max_examples=50, deadline=None)
@given(COUNTS, COUNTS)
def test_divergence_is_symmetric_and_between_0_and_1(first: Counter[str], second: Counter[str]) -> None:
    found = jensen_shannon(first, second)
    assert -1e-12 <= found <= 1 + 1e-12
    assert found == pytest.approx(jensen_shannon(second, first))


def test_words_digits_signs_and_single_han_characters_are_tokens() -> None:
    assert tokens_of("It costs 42 €!") == ["it", "costs", "42", "€", "!"]
    assert tokens_of("量化模型") == ["量", "化", "模", "型"]


def speech(words: str, count: int, seed: int) -> list[str]:
    """Sentences drawn from a vocabulary with Zipf-like frequencies, as languages have."""
    vocabulary = words.split()
    weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
    generator = random.Random(seed)
    return [" ".join(generator.choices(vocabulary, weights, k=40)) for _ in range(count)]


ENGLISH = "the of and to a in that it is was he for on are with as his they at be this from have or by one had not but"
GERMAN = "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er hat"


def test_the_same_source_is_within_its_noise() -> None:
    reference = speech(ENGLISH, 60, seed=1)
    found = measure_distance(speech(ENGLISH, 30, seed=2), reference)
    assert not found.far
    assert found.bits < found.noise + 0.02


def test_another_language_is_far_and_its_number_near_one() -> None:
    found = measure_distance(speech(GERMAN, 40, seed=1), speech(ENGLISH, 60, seed=1))
    assert found.far
    assert found.bits > 0.8
    assert found.noise < 0.1


def test_a_mixture_is_between() -> None:
    reference = speech(ENGLISH, 80, seed=1)
    half = measure_distance([*speech(ENGLISH, 20, seed=2), *speech(GERMAN, 20, seed=3)], reference)
    whole = measure_distance(speech(GERMAN, 40, seed=3), reference)
    assert half.noise < half.bits < whole.bits


def test_a_small_sample_is_not_called_far_for_being_small() -> None:
    found = measure_distance(speech(ENGLISH, 2, seed=5), speech(ENGLISH, 60, seed=1))
    assert not found.far


def test_scripts_are_named() -> None:
    assert script_of(["Hello there"]) == "LATIN"
    assert script_of(["量化模型的代价"]) == "CJK"
    assert script_of(["Привет"]) == "CYRILLIC"
    assert script_of(["123 !"]) == ""


def test_calibration_in_another_language_is_warned_of_with_both_numbers(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    ours.write_text("\n".join(json.dumps({"text": "量化不是越低越好" * 4}) for _ in range(40)), encoding="utf-8")
    theirs.write_text("\n".join(json.dumps({"text": text}) for text in speech(ENGLISH, 60, 1)), encoding="utf-8")
    _, described = take_calibration(ours, samples=128, sequence_tokens=512, seed=0, reference=theirs)
    assert described.distance is not None
    assert described.distance > 0.95
    assert any("Cjk" in warning and "Latin" in warning for warning in described.warnings)
    assert any("bits of 1" in warning for warning in described.warnings)
