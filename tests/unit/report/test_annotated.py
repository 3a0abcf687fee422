"""What is written for trace viewers: every piece of work and every gap, at its time."""

import gzip
import json
from pathlib import Path

import numpy as np

from powerband.records.timeline import KERNEL, Spans, Timeline
from powerband.report.annotated import write_annotated, write_folded


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def spans(*rows: tuple[int, int, int, int]) -> Spans:
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return Spans(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


TIMELINE = Timeline(
    source="t",
    device="0",
    work_start_ns=ints(0, 5000),
    work_end_ns=ints(2000, 6000),
    work_stream=ints(7, 7),
    work_kind=ints(KERNEL, KERNEL),
    work_name=ints(0, 0),
    work_launch=ints(0, 1),
    calls=spans((-1000, -500, 1, 1)),
    ops=spans(),
    waits=spans(),
    loads=spans(),
    marks=spans((0, 6000, 1, 2)),
    names=("gemm;a", "cudaLaunchKernel", "step"),
    threads=("gpu", "1"),
)
PARTS = {"launch gaps": np.array([2500.0]), "host sync": np.array([500.0])}


def test_a_viewer_gets_work_calls_ranges_and_named_gaps(tmp_path: Path) -> None:
    for name in ("t.json", "t.json.gz"):
        count = write_annotated(tmp_path / name, TIMELINE, ints(2000), ints(5000), PARTS)
        text = (
            gzip.decompress((tmp_path / name).read_bytes()).decode()
            if name.endswith(".gz")
            else (tmp_path / name).read_text()
        )
        events = json.loads(text)["traceEvents"]
        assert len(events) == count + 1
        slices = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
        assert slices == [
            ("launch gaps", 2.0, 3.0),
            ("gemm;a", 0.0, 2.0),
            ("gemm;a", 5.0, 1.0),
            ("cudaLaunchKernel", -1.0, 0.5),
            ("step", 0.0, 6.0),
        ]
        assert events[8]["args"]["us"] == {"launch gaps": 2.5, "host sync": 0.5}


def test_folded_stacks_sum_to_work_and_gaps(tmp_path: Path) -> None:
    write_folded(tmp_path / "t.folded", TIMELINE, PARTS)
    assert (tmp_path / "t.folded").read_text().splitlines() == [
        "device;kernels;gemm,a 3000",
        "idle;launch gaps 2500",
        "idle;host sync 500",
    ]
