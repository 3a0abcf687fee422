"""Calibration data: samples of the user's own text over kinds and lengths, and their distance from the traffic."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from powerband.quantize.distance import measure_distance, script_of, tokens_of
from powerband.quantize.texts import Sample, read_samples
from powerband.records.quantisation import CalibrationSet

FEW = 32  # samples below which the scales rest on little


def take_calibration(
    path: Path, *, samples: int, sequence_tokens: int, seed: int, reference: Path | None = None
) -> tuple[list[Sample], CalibrationSet]:
    """``samples`` of ``path``, and what is known of them. Raises RequestError for a file without text."""
    found = read_samples(path)
    chosen = choose(found, samples, seed)
    described = describe(chosen, path, sequence_tokens=sequence_tokens, seed=seed)
    if reference is None:
        return chosen, described
    return chosen, compare_to(described, found, reference, seed)


def choose(found: Sequence[Sample], wanted: int, seed: int) -> list[Sample]:
    """``wanted`` samples: each kind and length quarter has its share, and none is left out while there is room."""
    if len(found) <= wanted:
        return list(found)
    generator = random.Random(seed)
    lengths = sorted(len(sample.text) for sample in found)
    quarters = [lengths[len(lengths) * part // 4] for part in (1, 2, 3)]
    strata: dict[tuple[str, int], list[Sample]] = {}
    for sample in found:
        quarter = sum(len(sample.text) >= bound for bound in quarters)
        strata.setdefault((sample.kind, quarter), []).append(sample)
    chosen: list[Sample] = []
    for key, share in shares({key: len(members) for key, members in strata.items()}, wanted).items():
        chosen += generator.sample(strata[key], share)
    generator.shuffle(chosen)
    return chosen


def shares(sizes: dict[tuple[str, int], int], wanted: int) -> dict[tuple[str, int], int]:
    """``wanted`` split over strata by largest remainder: one each while there are enough, none above its size."""
    total = sum(sizes.values())
    order = sorted(sizes, key=lambda key: (-sizes[key], key))
    exact = {key: wanted * sizes[key] / total for key in order}
    given = {key: min(sizes[key], max(int(exact[key]), 1 if len(sizes) <= wanted else 0)) for key in order}
    while sum(given.values()) < wanted:
        key = max((key for key in order if given[key] < sizes[key]), key=lambda key: exact[key] - given[key])
        given[key] += 1
    while sum(given.values()) > wanted:
        key = min((key for key in order if given[key] > 1), key=lambda key: exact[key] - given[key])
        given[key] -= 1
    return given


def describe(chosen: Sequence[Sample], path: Path, *, sequence_tokens: int, seed: int) -> CalibrationSet:
    """Counts, lengths and kinds of what was taken; lengths in words and signs, which tokens exceed by a third."""
    lengths = sorted(len(tokens_of(sample.text)) for sample in chosen)
    warnings = []
    if len(chosen) < FEW:
        warnings.append(f"{len(chosen)} samples: some hundred are usual, below {FEW} the scales rest on little")
    cut = sum(length > sequence_tokens for length in lengths)
    if cut * 2 > len(lengths):
        warnings.append(f"{cut} of {len(lengths)} samples are longer than {sequence_tokens} tokens and are cut")
    return CalibrationSet(
        source=str(path),
        sha256=digest(chosen),
        samples=len(chosen),
        tokens=sum(min(length, sequence_tokens) for length in lengths),
        seed=seed,
        kinds=dict(Counter(sample.kind for sample in chosen)),
        length_p50=lengths[len(lengths) // 2],
        length_p90=lengths[len(lengths) * 9 // 10],
        language=script_of([sample.text for sample in chosen]),
        warnings=tuple(warnings),
    )


def compare_to(described: CalibrationSet, found: Sequence[Sample], reference: Path, seed: int) -> CalibrationSet:
    """``described`` with its distance from the text of ``reference``; far is said in a warning with both numbers."""
    theirs = [sample.text for sample in read_samples(reference)]
    ours = [sample.text for sample in found]
    distance = measure_distance(ours, theirs, seed=seed)
    warnings = list(described.warnings)
    script = script_of(theirs)
    if script and described.language and script != described.language:
        warnings.append(f"calibration text is mostly {described.language.title()}, the traffic {script.title()}")
    if distance.far:
        warnings.append(
            f"calibration text is far from the traffic: {distance.bits:.2f} bits of 1"
            f" (the traffic against itself: {distance.noise:.2f}); take samples of the traffic"
        )
    return msgspec.structs.replace(
        described,
        distance=round(distance.bits, 4),
        distance_noise=round(distance.noise, 4),
        distance_to=str(reference),
        warnings=tuple(warnings),
    )


def digest(samples: Sequence[Sample]) -> str:
    """SHA-256 over the samples in order: equal for equal calibration, whatever file it came from."""
    text = json.dumps([[sample.text, list(sample.messages)] for sample in samples], ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write_samples(samples: Sequence[Sample], path: Path) -> None:
    """The samples as the tools read them: one JSON object a line, ``messages`` where it is a conversation."""
    with path.open("w", encoding="utf-8") as file:
        for sample in samples:
            entry = {"messages": list(sample.messages)} if sample.messages else {"text": sample.text}
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
