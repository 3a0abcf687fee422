"""docs/reference/engines.md lists every knob as the code has it."""

from pathlib import Path

import pytest

from powerband.engines.base import BUILT_IN, get_engine
from powerband.records.config import Knob

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "engines.md"
_BY_MACHINE = {
    "n_threads": "physical cores",
    "n_threads_batch": "physical cores",
    "n_threads_http": "cores - 1, at least 2",
    "max_num_seqs": "1024; 256 below 70 GiB and on an A100; 128 on a CPU",
    "max_num_batched_tokens": "8192; 2048 below 70 GiB, on an A100 and on a CPU",
    "block_size": "16; 128 on a CPU",
}


def row(knob: Knob) -> str:
    if knob.kind == "choice":
        values = ", ".join(knob.choices)
    elif knob.kind in ("int", "float") and knob.low is not None:
        top = (
            "cores" if knob.name in ("n_threads", "n_threads_batch") else "" if knob.high is None else f"{knob.high:g}"
        )
        values = f"{knob.kind}, {knob.low:g} to {top}" if top else f"{knob.kind}, {knob.low:g} or more"
    else:
        values = knob.kind
    naive = _BY_MACHINE.get(knob.name, str(knob.naive))
    return f"| `{knob.name}` | {values} | {naive} | {knob.help} |"


@pytest.mark.parametrize("engine", ["llamacpp", "vllm", "openai", "fake"])
def test_every_knob_has_its_row(engine: str) -> None:
    lines = set(PAGE.read_text().splitlines())
    absent = [row(knob) for knob in get_engine(engine).knobs() if row(knob) not in lines]
    assert absent == [], "\n".join(absent)


def test_every_engine_says_what_was_run() -> None:
    section = PAGE.read_text().partition("## What was run")[2]
    rows = [line.split("|")[1].strip(" `") for line in section.splitlines() if line.startswith("| `")]
    assert set(BUILT_IN) - set(rows) == set()
