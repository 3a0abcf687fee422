"""A plan on a terminal: what its answer counts, and what stays readable where there is little room."""

import pytest

from powerband.cli import quantize_screen
from powerband.probes.device import read_device
from powerband.quantize.plan import Plan, Setting
from powerband.records.config import EngineConfig
from powerband.records.quantisation import Answer, Forecast, PlanRow, Support
from tests.support.shapes import llama_8b

GIB = 2**30
SETTING = Setting(
    model=llama_8b(), device=read_device("l4"), config=EngineConfig(engine="vllm", model="m"),
)  # fmt: skip


def row(method: str, gib: float, *, fits: bool | None, answer: Answer = "runs", speeds: bool = True) -> PlanRow:
    """``fits`` None: nobody can say, there is no ledger."""
    found = Forecast(
        weight_bytes=round(gib * GIB), fits=bool(fits), kv_tokens=0, users=141.0, prefill_ratio=0.71,
        output_tokens_per_s=1750.0 if speeds else None, ttft_p50_s=0.656 if speeds else None,
        tpot_p50_s=0.0363 if speeds else None,
    )  # fmt: skip
    support = Support(format="int8-w8a8", engine="vllm", device="l4", answer=answer, why="because")
    return PlanRow(
        method=method, format="torchao-int8", support=support, risk="medium", risk_why="", tool="t",
        needs_calibration=False, forecast=None if fits is None else found,
    )  # fmt: skip


def drawn(monkeypatch: pytest.MonkeyPatch, width: int, *rows: PlanRow) -> list[str]:
    monkeypatch.setattr(quantize_screen, "terminal", lambda: {"width": width, "color": False})
    base = Forecast(weight_bytes=20 * GIB, fits=False, kv_tokens=0)
    plan = Plan(table_version="1", stored=None, base=base, rows=rows)
    return quantize_screen.draw_plan(SETTING, plan).splitlines()


def test_the_answer_counts_and_names_only_what_runs_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        row("smoothquant", 12, fits=False),
        row("awq", 5, fits=True),
        row("gptq", 6, fits=True),
        row("mlx4", 5, fits=None, answer="refused"),
    )
    assert drawn(monkeypatch, 160, *rows)[0] == (
        "2 of 4 run and fit with vllm on l4; 1 more runs but does not fit (!); "
        "least risk first, awq: weights 20.00 GiB -> 5.00 GiB."
    )
    assert drawn(monkeypatch, 160, rows[0], row("fp8", 9, fits=False))[0] == (
        "None of 2 fits with vllm on l4; 2 run but do not fit (!)."
    )
    assert drawn(monkeypatch, 160, row("awq", 5, fits=None))[0] == (
        "1 of 1 runs with vllm on l4, whether it fits is not known here; least risk first, awq."
    )


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_mark_and_every_heading_are_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    rows = (row("awq", 5, fits=True), row("smoothquant", 8.49, fits=False), row("gguf:q3_k_m", 14, fits=False))
    lines = drawn(monkeypatch, width, *rows)
    assert "…" not in "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "8.49 GiB !" in next(line for line in lines if line.startswith("smoothquant"))
    assert "14.00 GiB !" in next(line for line in lines if line.startswith("gguf:q3_k_m"))
    table = " ".join(lines[:8])
    for head in ("method", "format", "weights", "users", "tok/s", "TTFT", "TPOT", "risk"):
        assert head in table
    assert ("prefill" in table) == (width > 80)  # what has no room is named
    assert ("no room here for prefill" in " ".join(lines)) == (width == 80)


def test_columns_without_any_figure_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    table = " ".join(drawn(monkeypatch, 120, row("awq", 5, fits=True, speeds=False))[:4])
    assert "weights" in table
    assert "TTFT" not in table
