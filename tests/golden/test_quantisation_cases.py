"""The compatibility table against what people met: every published case must get the answer that reality gave."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from powerband.probes.device import read_device
from powerband.quantize.compatibility import Question, check_support, read_table
from powerband.records.model import LayerGroup, ModelSpec

CASES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "quantisation" / "cases.toml").read_text(encoding="utf-8")
)["case"]


def model_of(sizes: dict[str, Any]) -> ModelSpec:
    """A shape with the sizes that a case names; the rest does not matter to the table."""
    kind = "mla" if sizes.get("family") == "mla" else "attention"
    layers = (LayerGroup(count=1, kind=kind, kv_heads=8, head_dim=128),)  # type: ignore[arg-type]
    wanted = {name: value for name, value in sizes.items() if name != "family"}
    return ModelSpec(
        name="case", architecture="case", layers=layers, vocab=1000, parameters=1, active_parameters=1, weight_bytes=1,
        weight_dtype="bf16", basis="computed", context_tokens=4096, **{"hidden": 4096, "heads": 32, **wanted},
    )  # fmt: skip


def question_of(case: dict[str, Any]) -> Question:
    ask = case["ask"]
    return Question(
        format=ask["format"],
        engine=ask["engine"],
        device=read_device(ask["device"]),
        engine_version=ask.get("version", ""),
        knobs=ask.get("knobs", {}),
        model=model_of(case["model"]) if "model" in case else None,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['source']}: {case['seen'][:40]}")
def test_the_table_answers_what_was_met(case: dict[str, Any]) -> None:
    found = check_support(question_of(case))
    assert found.answer == case["answer"], f"{case['seen']}: {found.why}"
    if "says" in case:
        assert case["says"] in f"{found.why} {found.kernel}"
    if "instead" in case:
        assert case["instead"] in found.instead
    if "caveat" in case:
        assert case["caveat"] in {caveat.rule for caveat in found.caveats}
    assert found.source


def test_enough_cases_are_held_and_each_names_its_source() -> None:
    assert len(CASES) >= 20
    assert all(case["source"] and case["seen"] for case in CASES)


def test_what_is_advised_instead_runs_there() -> None:
    """No answer sends its reader to something that is refused as well."""
    for case in CASES:
        asked = question_of(case)
        for name in check_support(asked).instead:
            plain = {key: value for key, value in asked.knobs.items() if key in ("tensor_parallel_size", "dtype")}
            other = Question(
                format=name, engine=asked.engine, device=asked.device, knobs=plain, model=asked.model,
                engine_version=asked.engine_version,
            )  # fmt: skip
            assert check_support(other).answer in ("runs", "slow"), (case["seen"], name)


def test_every_field_case_of_quantisation_is_among_them(field_dir: Path) -> None:
    rows = [json.loads(line) for line in (field_dir / "diagnosis" / "given.jsonl").read_text().splitlines()]
    wanted = {row["id"] for row in rows if str(row["category"]).startswith("quant_")}
    assert wanted == {case["field"] for case in CASES if "field" in case}


def test_every_rule_says_where_it_comes_from() -> None:
    table = read_table()
    assert len({rule.id for rule in table.rule}) == len(table.rule)
    for rule in table.rule:
        assert rule.source, rule.id
        assert rule.answer in ("runs", "slow", "refused", "caveat"), rule.id
        assert set(rule.instead) <= set(table.format), rule.id
