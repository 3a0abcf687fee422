"""Operators of a program on the CPU: which thread, which steps, and what the diagnosis makes of them, by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from powerband.locate.host_ops import diagnose_host_ops, self_ns
from powerband.probes.host_ops import read_host_ops
from powerband.records.errors import RequestError

MARK = "powerband step"


def op(name: str, ts: float, dur: float, tid: int = 1, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": {}}


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return op(f"{MARK} {number}", ts, dur, cat="user_annotation")


def write(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


# Two steps of 100 us: a linear of 60 that calls addmm for 50 of them, a small op of 10; 30 us lie between operators.
STEPS = [
    row
    for k, at in enumerate((0.0, 100.0))
    for row in (
        step(k, at, 100),
        op("aten::linear", at + 10, 60),
        op("aten::addmm", at + 15, 50),
        op("aten::relu", at + 80, 10),
    )
]


def test_self_times_nest(tmp_path: Path) -> None:
    seen = read_host_ops(write(tmp_path, STEPS), MARK)
    own = self_ns(seen.ops).tolist()
    names = [seen.names[index] for index in seen.ops.name.tolist()]
    assert dict(zip(names[:3], own[:3], strict=True)) == {
        "aten::linear": 10_000,
        "aten::addmm": 50_000,
        "aten::relu": 10_000,
    }
    assert seen.steps.size == 2


def test_the_window_splits_into_kinds_that_sum_to_it(tmp_path: Path) -> None:
    found = diagnose_host_ops(read_host_ops(write(tmp_path, STEPS), MARK))
    parts = {part.name: round(part.seconds * 1e6, 6) for part in found.breakdown if part.seconds}
    assert parts == {"matrix products": 120, "other operators": 20, "between operators": 60}
    assert sum(part.seconds for part in found.breakdown) == pytest.approx(found.window_s)
    assert found.verdict == "undecided"
    assert "60 % of the time goes to matrix products" in found.reason
    assert found.gpu_busy_ratio is None


def test_time_between_operators_is_the_frameworks(tmp_path: Path) -> None:
    thin = [row for k in range(4) for row in (step(k, 100.0 * k, 100), op("aten::mm", 100.0 * k + 5, 20))]
    found = diagnose_host_ops(read_host_ops(write(tmp_path, thin), MARK))
    assert found.verdict == "scheduler_bound"
    assert found.findings[0].share == pytest.approx(0.8)


def test_other_threads_are_counted_and_left_out(tmp_path: Path) -> None:
    busy = [op("aten::mm", 10.0 * k, 10, tid=2) for k in range(50)]
    seen = read_host_ops(write(tmp_path, [*STEPS, *busy]), MARK)
    assert seen.ops.size == 6
    assert seen.others == 50
    assert read_host_ops(write(tmp_path, busy), MARK).ops.size == 50  # without marks: the thread that did most


def test_a_trace_without_operators_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="holds no operator in 1 events"):
        read_host_ops(write(tmp_path, [step(0, 0, 10)]), MARK)
