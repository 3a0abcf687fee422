"""docs/reference/hosted-engines.md lists every knob as the code has it."""

from pathlib import Path

import pytest

from powerband.engines.base import get_engine
from powerband.records.config import Knob

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "hosted-engines.md"
_CORES = ("num_threads", "INFERENCE_NUM_THREADS")


def row(knob: Knob) -> str:
    values: str = knob.kind
    if knob.kind == "choice":
        values = ", ".join(knob.choices)
    elif knob.kind in ("int", "float") and knob.low is not None:
        top = "cores" if knob.name in _CORES else "" if knob.high is None else f"{knob.high:g}"
        values = f"{knob.kind}, {knob.low:g} to {top}" if top else f"{knob.kind}, {knob.low:g} or more"
    return f"| `{knob.name}` | {values} | {knob.naive} | {knob.help} |"


@pytest.mark.parametrize("engine", ["transformers", "openvino"])
def test_every_knob_has_its_row(engine: str) -> None:
    lines = set(PAGE.read_text().splitlines())
    absent = [row(knob) for knob in get_engine(engine).knobs() if row(knob) not in lines]
    assert absent == [], "\n".join(absent)
