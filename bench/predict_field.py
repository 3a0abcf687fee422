"""How far the datasheet alone predicts TPOT, TTFT and throughput that others measured: no run calibrates anything here.

    python bench/predict_field.py --field ../shared/field --out docs/reference/prediction-accuracy.md

Each row of the field data that states its model, card, precision, parallelism, lengths and load is simulated and
compared; every other row is counted with the reason it cannot be. No run calibrates anything here. The constants of
src/powerband/simulate/efficiency.py were chosen with the rows of ai-dynamo/aiconfigurator in view (what experts in 8
and 4 bit reach also with gpustack's), so those are no independent test; InferenceX and XiongjieDai are held out. Where
a script or an engine's source says more than a row (defaults by card, speculation, how lengths are drawn, which command
a section of a page was run with), it is used.

InferenceX's rows are told apart from "all". The rule: a row whose prompts the server may have seen before, without a
word on how much of them was in its cache, does not state its work. Its client draws the prompts of every point of a
sweep from seed 0, so that a point sends those of the points before it and some more, and vLLM keeps prefixes by
default. It shows: with MiniMax-M2.5 and prompts of 1,024 tokens the median TPOT falls from 37 to 24 ms when 48 are in
flight instead of 32, where the new prompts are a third instead of half; GLM-5's rows show no such sign. The rule rests
on the client's source, but was made after the errors had been seen. These rows are predicted all the same, as if
nothing had been cached, and the line "all, and repeated prompts" has them.
"""

import argparse
import json
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from field_rows import Unread, burst, card_of, read_script, script_of
from powerband.account.ledger import compute_ledger
from powerband.probes.config_model import model_from_config
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig
from powerband.records.counting import NORMAL_90
from powerband.records.errors import PowerbandError
from powerband.records.hardware import DeviceSpec
from powerband.records.metrics import Metrics
from powerband.records.model import ModelSpec
from powerband.records.value import Missing, Record
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.figures import simulate_figures
from powerband.simulate.loop import simulate
from powerband.simulate.predict import step_spread
from powerband.simulate.scheduler import Limits, Speculation
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
    "A100 PCIe 80GB": "a100-80gb-pcie",
    "H100 PCIe 80GB": "h100-pcie",
    "4080 16GB": "rtx4080",
    "3080 10GB": "rtx3080",
    "RTX 6000 Ada 48GB": "rtx6000ada",
    "RTX A6000 48GB": "rtxa6000",
    "M3 Max 40‑Core GPU 64GB": "m3-max-128gb",  # the same chip
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
# The script beside the rows starts vLLM with one guess from the model's own MTP layer; how many were right is not told.
# DeepSeek-V3's report says 85 to 90 % for the same scheme; drafting runs one layer of 78 and the head.
SPECULATING = {"zai-org/GLM-5-FP8": Speculation(draft_tokens=1, acceptance=0.85, draft_share=0.03)}
INFERENCEX_SHORTEST = 0.8
WHY_WORST = """## Where the misses come from

* **InferenceX, all**: prompts are repeated (above). MiniMax-M2.5 and Qwen3.5 besides prefill at half and at a tenth of
  what is expected; Qwen3.5 in bf16 takes 4 s to a first token of 1,024 at concurrency 4, where SGLang's FP8 rows take
  0.25 s. Nothing of the datasheet explains that; it is not fitted.
* **InferenceX, GLM-5**: its throughput is right for long prompts. TPOT is too long at 32 in flight and more, since by
  our ledger the cache holds 367,000 tokens, and by how many ran at once it held some 215,000.
* **gpustack, 1,000 short requests at once on gpt-oss-20b**: 190 a second came through, what the client and the API
  server pass on; the engine was not full.
* **gpustack, DeepSeek-V3.2, and SGLang on A100**: a first release without tuned kernels.
* **FP8 on A100, which unpacks it**: prompts are a third slower than in 16 bit, which is what is assumed for them.
* **FP8 Llama-8B**: its prompts reach half of the FP8 peak; dense products are taken to reach 45 %, attention 40 %."""
# vLLM's defaults for a server on a card of 70 GiB and more, but for the A100, which has those of smaller cards
# (EngineArgs.get_batch_defaults in vllm/engine/arg_utils.py, 0.10 to 0.17).
LARGE_CARD = Limits(slots=1024, batch_tokens=8192, block_tokens=16)
SMALLER_CARD = Limits(slots=256, batch_tokens=2048, block_tokens=16)


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
    repeats: bool = False  # prompts that the server may have seen before

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


def closed_loop(
    concurrency: int,
    prompt: int,
    answer: int,
    *,
    shortest: float = 1.0,
    count: int | None = None,
    guessed: Speculation | None = None,
) -> Workload:
    """A closed loop of ``count`` requests (None: four rounds), lengths from ``shortest`` to 1 times as stated.

    Equal ones wait in step. Where tokens are ``guessed`` they do not stay so, since each takes as many steps as its
    luck with the guesses has it: here the lengths vary by as many tokens (one guess a step, right with chance a: a
    (1 - a) tokens a step of variance).
    """
    draw = random.Random(0)
    luck = 0.0
    if guessed is not None:
        luck = (answer * guessed.acceptance * (1 - guessed.acceptance) / guessed.tokens_per_step) ** 0.5

    def length(stated: int, spread: float = 0.0) -> int:
        drawn = stated if shortest == 1.0 else draw.randint(round(shortest * stated), stated)
        return max(2, round(draw.gauss(drawn, spread))) if spread else drawn

    requests = tuple(
        RequestSpec(offset_ns=0, input_tokens=length(prompt), output_tokens=length(answer, luck))
        for _ in range(count or max(4 * concurrency, 8))
    )
    return Workload(requests=requests, source="closed loop", concurrency=concurrency)


def compare(
    row: dict[str, Any],
    model: ModelSpec,
    device: DeviceSpec,
    config: EngineConfig,
    workload: Workload,
    measured: dict[str, float],
    engine: str,
    limits: Limits = LARGE_CARD,
) -> Iterator[Point]:
    step = predict_from_datasheet(model, device, config)
    tensor = int(config.knobs.get("tensor_parallel_size", 1))
    ledger = compute_ledger(model, device, config, count=tensor, remedies=False)
    if not ledger.fits:
        raise Skipped("does not fit by our ledger")
    limits = msgspec.structs.replace(limits, kv_tokens=ledger.capacity.kv_tokens)
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
    # Its dated dumps are InferenceX's public runs, whose client draws lengths (--random-range-ratio 0.8).
    shortest = 1.0 if "gap_analysis" in given or "gap-analysis" in given else INFERENCEX_SHORTEST
    workload = closed_loop(batch, int(row["isl"]), int(row["osl"]), shortest=shortest)
    limits = msgspec.structs.replace(LARGE_CARD, prompts_first=row["backend"] == "sglang")
    yield from compare(row, model, device_of(row["system"]), config, workload, measured, row["backend"], limits)


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
    guessed = SPECULATING.get(row["model"])
    count = int(found["num_prompts"])
    workload = closed_loop(int(row["concurrency"]), int(row["isl"]), int(row["osl"]), count=count, guessed=guessed)
    limits = msgspec.structs.replace(LARGE_CARD, speculation=guessed)
    for point in compare(row, model, device_of("h200"), config, workload, measured, row["engine"], limits):
        yield msgspec.structs.replace(point, repeats=True)


def from_gpustack(row: dict[str, Any], field: Field) -> Iterator[Point]:
    try:
        card, cards = card_of(row["hardware_text"])
        served = read_script(script_of(row))
    except Unread as reason:
        raise Skipped(str(reason)) from reason
    if served.tp > cards:
        raise Skipped("script and hardware disagree")
    name, _, suffix = served.model.partition("-FP8")
    model = field.model(name, "fp8" if served.model.endswith("-FP8") and not suffix else None)
    config = EngineConfig(engine="vllm", model=model.name, knobs={"tensor_parallel_size": served.tp})
    found = row["metrics"]
    measured = {
        "TPOT": found["Median TPOT (ms)"] / 1e3,
        "TTFT": found["Median TTFT (ms)"] / 1e3,
        "output tokens/s": found["Output token throughput (tok/s)"],
    }
    default = SMALLER_CARD if card == "a100" else LARGE_CARD
    limits = msgspec.structs.replace(
        default,
        slots=served.slots or default.slots,
        batch_tokens=served.batch or default.batch_tokens,
        prompts_first=served.engine == "sglang",
    )
    yield from compare(row, model, device_of(card), config, burst(row), measured, served.engine, limits)


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
    "gpustack/gpustack": from_gpustack,
    "ai-dynamo/aiconfigurator": from_aiconfigurator,
    "SemiAnalysisAI/InferenceX": from_inferencex,
    "XiongjieDai/GPU-Benchmarks-on-LLM-Inference": from_llamacpp_table,
}
NOT_TRIED = {
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
        *(text for part in (__doc__ or "").split("\n\n")[2:] for text in (part.strip().replace("\n", " "), "")),
    ]
    lines += ["Written by `bench/predict_field.py`. Error is predicted / measured - 1.", ""]
    everything = [msgspec.structs.replace(point, source="all") for point in points if not point.repeats]
    everything += [msgspec.structs.replace(point, source="all, and repeated prompts") for point in points]
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
    lines += ["", WHY_WORST, "", "## Rows that are not predicted", "", "| source | rows | why |", "| --- | --- | --- |"]
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
