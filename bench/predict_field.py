"""How far the datasheet alone predicts TPOT, TTFT and throughput that others measured: no run calibrates anything here.

    python bench/predict_field.py --field ../shared/field --out docs/reference/prediction-accuracy.md

Each row of the field data that states its model, card, precision, parallelism, lengths and load is simulated and
compared; every other row is counted with the reason it cannot be. No run calibrates anything here. The constants of
src/powerband/simulate/efficiency.py were chosen with the rows of ai-dynamo/aiconfigurator in view, so those are no
independent test; the rows of the other sources are.
"""

import argparse
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from powerband.probes.config_model import model_from_config
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig
from powerband.records.errors import PowerbandError
from powerband.records.hardware import DeviceSpec
from powerband.records.metrics import Metrics
from powerband.records.model import ModelSpec
from powerband.records.value import Missing, Record
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.figures import simulate_figures
from powerband.simulate.loop import simulate
from powerband.simulate.predict import NORMAL_90, step_spread
from powerband.simulate.scheduler import Limits
from powerband.simulate.step_time import predict_from_datasheet

# Bytes per weight in the linear layers, and the name of the format, where a row states another precision than the
# checkpoint's own. nvfp4 holds 16 values in 8 bytes and a scale of one; gguf sizes are llama.cpp's bits per weight.
FORMATS = {
    "fp8": ("fp8", 1.0),
    "fp8_block": ("fp8", 1.0),
    "nvfp4": ("nvfp4", 9 / 16),
    "int4_wo": ("int4", 0.5625),
    "Q4_K_M": ("q4_k", 4.85 / 8),
    "F16": ("f16", 2.0),
}
DEVICES = {
    "h200_sxm": "h200",
    "h100_sxm": "h100",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "4090 24GB": "rtx4090",
    "3090 24GB": "rtx3090",
    "L4 24GB": "l4",
    "L40S 48GB": "l40s",
    "A100 80GB": "a100",
    "A100 SXM 80GB": "a100",
    "A100 PCIe 80GB": "a100-pcie",
    "H100 PCIe 80GB": "h100-pcie",
    "4080 16GB": "rtx4080",
    "5000 Ada 32GB": "rtx5000-ada",
    "6000 Ada 48GB": "rtx6000-ada",
    "A6000 48GB": "a6000",
    "A40 48GB": "a40",
}
MODELS = {
    "Llama-3-8B": "meta-llama/Meta-Llama-3.1-8B",  # the same shape
    "Llama-3-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}


class Point(Record):
    """One measured figure beside its prediction."""

    source: str
    engine: str
    card: str
    model: str
    what: str
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


class Skipped(Exception):
    """Why a row cannot be predicted."""


class Field:
    """The folder of field data: rows, and models by name."""

    def __init__(self, folder: Path) -> None:
        text = (folder / "perf" / "given.jsonl").read_text(encoding="utf-8")
        self.rows = [json.loads(line) for line in text.splitlines()]
        self._configs: dict[str, dict[str, Any]] = {}
        for path in sorted((folder / "models").glob("*.json")):
            found = json.loads(path.read_text(encoding="utf-8"))
            if "config" in found:
                self._configs[str(found["model"]).lower()] = found["config"]

    def model(self, name: str, precision: str | None) -> ModelSpec:
        config = self._configs.get(MODELS.get(name, name).lower())
        if config is None:
            raise Skipped(f"no config of {name}")
        try:
            spec = model_from_config(name, config, name)
        except PowerbandError as error:
            raise Skipped(f"config of {name}: {error.message}") from error
        if precision in (None, "", "bf16", "none") or precision not in FORMATS:
            return spec
        label, width = FORMATS[precision]
        return _in_format(spec, label, width)


def _in_format(spec: ModelSpec, label: str, width: float) -> ModelSpec:
    """The model with its linear layers in another format; embeddings, norms and the head stay as they are.

    GGUF files convert everything.
    """
    everything = label.startswith(("q4", "f16"))
    parts = tuple(
        msgspec.structs.replace(part, bytes=round(part.parameters * width), dtype=label)
        if everything or part.role in ("attention", "mlp", "experts", "recurrent")
        else part
        for part in spec.parts
    )
    return msgspec.structs.replace(
        spec, parts=parts, weight_bytes=sum(part.bytes for part in parts), weight_dtype=label
    )


def device_of(name: str) -> DeviceSpec:
    try:
        return read_device(DEVICES.get(name, name))
    except PowerbandError:
        raise Skipped(f"card {name} is not in the catalogue") from None


def closed_loop(concurrency: int, prompt: int, answer: int) -> Workload:
    """Four rounds of a closed loop of equal requests, as the rows state them: they march in step, and wait in step."""
    one = RequestSpec(offset_ns=0, input_tokens=prompt, output_tokens=answer)
    return Workload(requests=(one,) * max(4 * concurrency, 8), source="closed loop", concurrency=concurrency)


def compare(
    row: dict[str, Any],
    model: ModelSpec,
    device: DeviceSpec,
    config: EngineConfig,
    workload: Workload,
    measured: dict[str, float],
    engine: str,
) -> Iterator[Point]:
    step = predict_from_datasheet(model, device, config)
    limits = Limits(slots=1024, batch_tokens=8192, block_tokens=16)
    ratio = 2.718281828 ** (NORMAL_90 * step_spread(step, simulate_figures(workload, step, limits), limits))
    middle, fast, slow = (
        _figures(simulate(config, workload, step.scaled(factor), limits, detailed=False).metrics())
        for factor in (1.0, 1 / ratio, ratio)
    )
    for what, value in measured.items():
        ends = sorted((fast[what], slow[what]))
        yield Point(
            source=row["source"].split("@")[0],
            engine=engine,
            card=device.name,
            model=model.name,
            what=what,
            measured=value,
            predicted=middle[what],
            low=ends[0],
            high=ends[1],
        )


def _figures(metrics: Metrics) -> dict[str, float]:
    assert not isinstance(metrics.ttft_s, Missing)
    assert not isinstance(metrics.tpot_s, Missing)
    return {
        "TPOT": metrics.tpot_s.p50,
        "TTFT": metrics.ttft_s.p50,
        "output tokens/s": metrics.output_tokens_per_s,
        "prompt tokens/s": metrics.input_tokens_per_s,
    }


def from_aiconfigurator(row: dict[str, Any], field: Field) -> Iterator[Point]:
    if row["mode"] != "agg" or int(row["pp_size"]) > 1:
        raise Skipped("pipeline parallel or disaggregated")
    tp = int(row["tp_size"])
    if tp > 8:
        raise Skipped(f"{tp} cards, beyond one node")
    if int(row.get("attention_dp_size") or 1) > 1:
        raise Skipped("attention data-parallel")
    batch = int(row["batch_size"])
    given = row.get("silicon_data_source", "")
    concurrency = (
        int(given.split("silicon_concurrency=")[1].split(";")[0]) if "silicon_concurrency=" in given else batch
    )
    if concurrency != batch:
        raise Skipped("batch and concurrency differ")
    model = field.model(row["model_path"], row.get("moe_quant_mode") or row.get("gemm_quant_mode"))
    config = EngineConfig(engine="vllm", model=model.name, knobs={"tensor_parallel_size": tp})
    measured = {"TPOT": float(row["silicon_tpot_ms"]) / 1e3, "TTFT": float(row["silicon_ttft_ms"]) / 1e3}
    workload = closed_loop(batch, int(row["isl"]), int(row["osl"]))
    yield from compare(row, model, device_of(row["system"]), config, workload, measured, row["backend"])


def from_inferencex(row: dict[str, Any], field: Field) -> Iterator[Point]:
    if row["parallel"] not in ("tp8", "tep8"):
        raise Skipped(f"parallelism {row['parallel']}")
    model = field.model(row["model"], None)
    config = EngineConfig(engine="vllm", model=model.name, knobs={"tensor_parallel_size": 8})
    found = row["metrics"]
    measured = {
        "TPOT": found["median_tpot"],
        "TTFT": found["median_ttft"],
        "output tokens/s": found["output_throughput"],
    }
    workload = closed_loop(int(row["concurrency"]), int(row["isl"]), int(row["osl"]))
    yield from compare(row, model, device_of("h200"), config, workload, measured, row["engine"])


def from_llamacpp_table(row: dict[str, Any], field: Field) -> Iterator[Point]:
    if row["oom"] or not row["decode_tok_s"]:
        raise Skipped("out of memory, no figure")
    gpu = row["gpu"]
    if "*" in gpu:
        raise Skipped("layers split over several cards")
    model = field.model(row["model"], row["quant"])
    config = EngineConfig(engine="llamacpp", model=model.name, knobs={"n_parallel": 1})
    device = device_of(gpu)
    step = predict_from_datasheet(model, device, config)
    generated, prompt = int(row["gen_tokens"]), int(row["prompt_tokens"])
    # The table's decode test starts on an empty context, and its prompt test is one prompt of that length.
    spread = step.spread(step.parts(sequences=1, context_tokens=512, prefill_tokens=0, pairs=0, sampled=1))
    decode_s = step.seconds(sequences=1, context_tokens=generated / 2)
    prefill_s = step.seconds(sequences=0, prefill_tokens=prompt)
    ratio = 2.718281828 ** (NORMAL_90 * spread)
    for what, measured, predicted in (
        ("TPOT", 1 / row["decode_tok_s"], decode_s),
        ("prompt time per token", 1 / row["prefill_tok_s"], prefill_s / prompt),
    ):
        yield Point(
            source=row["source"].split("@")[0],
            engine="llama.cpp",
            card=device.name,
            model=f"{row['model']} {row['quant']}",
            what=what,
            measured=measured,
            predicted=predicted,
            low=predicted / ratio,
            high=predicted * ratio,
        )


SOURCES = {
    "ai-dynamo/aiconfigurator": from_aiconfigurator,
    "SemiAnalysisAI/InferenceX": from_inferencex,
    "XiongjieDai/GPU-Benchmarks-on-LLM-Inference": from_llamacpp_table,
}
NOT_TRIED = {
    "gpustack/gpustack": "bursts of ShareGPT prompts whose lengths are not given, settings in free text",
    "premAI-io/benchmarks": "prompt length and engine version not given",
}


def collect(field: Field) -> tuple[list[Point], Counter[tuple[str, str]]]:
    points: list[Point] = []
    skipped: Counter[tuple[str, str]] = Counter()
    for row in field.rows:
        source = row["source"].split("@")[0]
        method = SOURCES.get(source)
        if method is None:
            skipped[source, NOT_TRIED.get(source, "too few rows of this kind for a reader")] += 1
            continue
        try:
            points += list(method(row, field))
        except Skipped as reason:
            skipped[source, str(reason)] += 1
    return points, skipped


def summary(points: list[Point], by: str) -> list[str]:
    groups: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.what, str(getattr(point, by))].append(point)
    lines = [f"| figure | {by} | rows | median error | median of absolute | within 15 % | 90 % interval holds |"]
    lines.append("| --- " * 7 + "|")
    for (what, name), own in sorted(groups.items()):
        errors = [point.error for point in own]
        absolute = [abs(error) for error in errors]
        held = sum(point.low <= point.measured <= point.high for point in own) / len(own)
        lines.append(
            f"| {what} | {name} | {len(own)} | {statistics.median(errors):+.0%} | {statistics.median(absolute):.0%} "
            f"| {sum(error <= 0.15 for error in absolute) / len(own):.0%} | {held:.0%} |"
        )
    return lines


def render(points: list[Point], skipped: Counter[tuple[str, str]]) -> str:
    lines = [
        "# Prediction from the datasheet: how far off",
        "",
        (__doc__ or "").split("\n\n")[2].replace("\n", " "),
        "",
    ]
    lines += ["Written by `bench/predict_field.py`. Error is predicted / measured - 1.", ""]
    everything = [msgspec.structs.replace(point, source="all") for point in points]
    for by in ("source", "engine", "card", "model"):
        shown = points + everything if by == "source" else points
        lines += [f"## By {by}", "", *summary(shown, by), ""]
    worst = sorted((p for p in points if p.what == "TPOT"), key=lambda p: abs(p.error), reverse=True)[:12]
    lines += ["## The twelve worst of TPOT", "", "| source | engine | card | model | measured ms | predicted ms |"]
    lines.append("| --- " * 6 + "|")
    lines += [
        f"| {p.source} | {p.engine} | {p.card} | {p.model} | {p.measured * 1e3:.1f} | {p.predicted * 1e3:.1f} |"
        for p in worst
    ]
    lines += ["", "## Rows that are not predicted", "", "| source | rows | why |", "| --- | --- | --- |"]
    lines += [f"| {source} | {count} | {why} |" for (source, why), count in sorted(skipped.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--field", type=Path, default=Path("../shared/field"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--points", type=Path, help="write every point as JSON lines")
    args = parser.parse_args()
    points, skipped = collect(Field(args.field))
    text = render(points, skipped)
    print(text)
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    if args.points:
        args.points.write_bytes(b"\n".join(msgspec.json.encode(point) for point in points))


if __name__ == "__main__":
    main()
