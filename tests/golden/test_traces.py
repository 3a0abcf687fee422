"""Real profiler traces with reference timelines that another tool made of them."""

import csv
from pathlib import Path

import pytest

from powerband.locate.timeline import diagnose_timeline
from powerband.probes.kineto import read_kineto
from powerband.records.errors import RequestError
from powerband.records.finding import Diagnosis

BERT = "h100_gaunernst_bert-small-uncased__1016001"
REFERENCES = {
    f"{BERT}.json.gz": f"{BERT}_perf_report_csvs__gpu_timeline.csv",
    "inference_sglang_decode_sglang_Qwen3-8B_decode.json.gz": "inference_sglang_decode_perf_csvs__gpu_timeline.csv",
    "inference_vllm_decode_full_graph_execution.json.gz": "inference_vllm_decode_full_perf_csvs__gpu_timeline.csv",
}
VERDICTS = {
    f"{BERT}.json.gz": "launch_bound",
    "inference_sglang_decode_sglang_Qwen3-8B_decode.json.gz": "idle_no_work",
    "inference_vllm_decode_full_graph_execution.json.gz": "memory_bandwidth_bound",
    "resnet50_num_workers_0__worker0.pt.trace.json.gz": "input_pipeline_bound",
    "resnet50_num_workers_4__worker0.pt.trace.json.gz": "compute_bound",
}


def read(field_dir: Path, name: str) -> Diagnosis:
    path = field_dir / "traces" / name
    if not path.exists():
        pytest.skip(f"no trace at {path}")
    return diagnose_timeline(read_kineto(path))


@pytest.mark.parametrize("name", REFERENCES)
def test_busy_and_its_parts_agree_with_the_reference_within_a_tenth_of_a_point(field_dir: Path, name: str) -> None:
    found = read(field_dir, name)
    with (field_dir / "traces" / REFERENCES[name]).open() as file:
        reference = {row["type"]: (float(row["time ms"]), float(row["percent"])) for row in csv.DictReader(file)}
    parts = {part.name: 100 * part.share for part in found.breakdown}
    assert found.gpu_busy_ratio is not None
    assert 100 * found.gpu_busy_ratio == pytest.approx(reference["busy_time"][1], abs=0.1)
    assert found.window_s * 1e3 == pytest.approx(reference["total_time"][0], rel=1e-5)
    assert parts["kernels"] == pytest.approx(reference["computation_time"][1], abs=0.1)
    assert parts["exposed copies"] == pytest.approx(reference["exposed_memcpy_time"][1], abs=0.1)
    assert parts["exposed communication"] == pytest.approx(reference["exposed_comm_time"][1], abs=0.1)


@pytest.mark.parametrize("name", VERDICTS)
def test_the_known_cause_is_the_verdict_and_parts_sum_to_the_window(field_dir: Path, name: str) -> None:
    found = read(field_dir, name)
    assert found.verdict == VERDICTS[name], found.reason
    assert sum(part.seconds for part in found.breakdown) == pytest.approx(found.window_s, abs=1e-6)


def test_more_loader_workers_fixed_the_input_pipeline(field_dir: Path) -> None:
    before = read(field_dir, "resnet50_num_workers_0__worker0.pt.trace.json.gz")
    after = read(field_dir, "resnet50_num_workers_4__worker0.pt.trace.json.gz")
    assert "6 loads take 280 ms" in before.reason  # 279.7 ms by the six annotations in the file
    shares = [{part.name: part.share for part in found.breakdown} for found in (before, after)]
    assert shares[0]["input pipeline"] == pytest.approx(0.198, abs=0.005)
    assert shares[1]["input pipeline"] < 0.001
    assert "input_pipeline_bound" not in {finding.cause for finding in after.findings}


@pytest.mark.parametrize(
    "name", ["cpu_only_rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", "rank_non_gpu_rank_non_gpu.json.gz"]
)
def test_a_trace_without_gpu_events_is_refused_in_one_line(field_dir: Path, name: str) -> None:
    with pytest.raises(RequestError, match="no GPU events") as caught:
        read(field_dir, name)
    assert "\n" not in caught.value.message
    assert "ProfilerActivity.CUDA" in caught.value.hint
