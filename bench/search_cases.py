"""Imaginary engines to search on: real models, cards and traffic, a true step time that the predictor does not know.

The truth differs from the prediction in three ways: every term of the step time is off by its own factor, knobs that
the simulator knows nothing of change the speed, and some configs die. Each trial is also shaken by noise. Numbers are
drawn with the case's seed; nothing here is taken from the search that is tried on it.
"""

import hashlib
import random
from dataclasses import dataclass, field

import msgspec
import numpy as np

from powerband.records.config import EngineConfig, Knob, Value
from powerband.records.hardware import DeviceSpec
from powerband.records.metrics import Metrics
from powerband.records.model import LayerGroup, ModelSpec
from powerband.records.run import Run
from powerband.records.slo import Slo
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.loop import simulate
from powerband.simulate.scheduler import limits_of
from powerband.simulate.step_time import StepTime, predict_from_datasheet
from powerband.tune.space import Space

BACKENDS = ("a", "b", "c")
FLASH = ("auto", "on", "off")
SEQUENCES = (1, 8, 16, 32, 64, 128, 256)
NOISE = 0.03  # of a whole trial: two runs of one config differ by this much (log, one standard deviation)
LONGEST_PROMPT, LONGEST_ANSWER = 6000, 1000
LONGEST = 7168  # tokens of the longest request, rounded up as llama.cpp does
START_S = 60.0  # an engine's start, paid by every trial

VLLM_KNOBS = (
    Knob(name="max_num_seqs", kind="int", help="", naive=1, grid=SEQUENCES, addresses=("no_batching",)),
    Knob(name="max_num_batched_tokens", kind="int", help="", naive=2048, grid=(512, 1024, 2048, 4096, 8192)),
    Knob(name="enforce_eager", kind="bool", help="", naive=True, grid=(True, False), addresses=("launch_bound",)),
    Knob(name="attention_backend", kind="choice", help="", naive="a", grid=BACKENDS, choices=BACKENDS),
    Knob(name="block_size", kind="int", help="", naive=16, grid=(16, 32)),
)  # fmt: skip
LLAMACPP_KNOBS = (
    Knob(name="n_parallel", kind="int", help="", naive=1, grid=(1, 2, 4, 8, 16, 32), addresses=("no_batching",)),
    Knob(name="n_batch", kind="int", help="", naive=2048, grid=(512, 2048)),
    Knob(name="n_ubatch", kind="int", help="", naive=512, grid=(128, 256, 512)),
    Knob(name="n_threads", kind="int", help="", naive=4, grid=(2, 4, 6, 8), addresses=("compute_bound",)),
    Knob(name="flash_attn", kind="choice", help="", naive="auto", grid=FLASH, choices=FLASH),
)  # fmt: skip


def dense(
    name: str, layers: int, hidden: int, heads: int, kv: int, inter: int, vocab: int, billions: float
) -> ModelSpec:
    count = round(billions * 1e9)
    return ModelSpec(
        name=name,
        architecture="dense",
        layers=(LayerGroup(count=layers, kind="attention", kv_heads=kv, head_dim=hidden // heads),),
        hidden=hidden,
        heads=heads,
        vocab=vocab,
        parameters=count,
        active_parameters=count,
        weight_bytes=2 * count,
        weight_dtype="bf16",
        basis="computed",
        context_tokens=32_768,
        intermediate=inter,
    )


def card(name: str, gib: int, terabytes: float, teraflops: float, kind: str = "gpu", cores: int = 0) -> DeviceSpec:
    return DeviceSpec(
        name=name,
        vendor="x",
        kind=kind,
        memory_bytes=gib << 30,
        bandwidth_bytes_per_s=terabytes * 1e12,
        flops_per_s={"bf16": teraflops * 1e12},
        source="datasheet",
        cores=cores,
    )


LLAMA_8B = dense("llama-3.1-8b", 32, 4096, 32, 8, 14_336, 128_256, 8.03)
QWEN_14B = dense("qwen3-14b", 40, 5120, 40, 8, 17_408, 151_936, 14.8)
LLAMA_7B = dense("llama-2-7b", 32, 4096, 32, 32, 11_008, 32_000, 6.74)
SMOL = msgspec.structs.replace(dense("smollm2-135m", 30, 576, 9, 3, 1536, 49_152, 0.1345), weight_bytes=98_000_000)
H100, A100, L4 = card("h100", 80, 3.35, 989), card("a100", 80, 2.04, 312), card("l4", 24, 0.30, 121)
CPU8 = card("cpu", 32, 0.08, 1.3, "cpu", 8)


@dataclass
class Case:
    """One engine to search on. ``evaluate`` is what a trial costs and gives; ``exact`` is without noise."""

    name: str
    model: ModelSpec
    device: DeviceSpec
    engine: str
    rate_per_s: float
    prompt: tuple[float, float]  # log-normal mean and sigma
    answer: tuple[float, float]
    slo: Slo
    seed: int
    requests: int = 80
    kv_tokens: int | None = None
    hidden: dict[tuple[str, Value], float] = field(default_factory=dict)
    dies: dict[str, int] = field(default_factory=dict)  # a config with this knob at or above this value
    start_s: float = START_S
    _exact: dict[str, Metrics] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        at_s, requests = 0.0, []
        for _ in range(self.requests):
            at_s += draw.expovariate(self.rate_per_s)
            prompt = min(max(round(draw.lognormvariate(*self.prompt)), 8), LONGEST_PROMPT)
            answer = min(max(round(draw.lognormvariate(*self.answer)), 4), LONGEST_ANSWER)
            requests.append(RequestSpec(offset_ns=round(at_s * 1e9), input_tokens=prompt, output_tokens=answer))
        self.workload = Workload(requests=tuple(requests), source=self.name)
        self.knobs = VLLM_KNOBS if self.engine == "vllm" else LLAMACPP_KNOBS
        self.space = Space(knobs=self.knobs, complete=_with_context)
        naive = {knob.name: knob.naive for knob in self.knobs}
        self.baseline = _with_context(EngineConfig(engine=self.engine, model=self.model.name, knobs=naive))
        self.prior = predict_from_datasheet(self.model, self.device, self.baseline)
        spread = 0.5 if self.device.kind == "cpu" else 0.25
        common = draw.gauss(0, spread)
        factors = tuple(float(factor * np.exp(common + draw.gauss(0, spread))) for factor in self.prior.factors)
        self.truth: StepTime = msgspec.structs.replace(self.prior, factors=factors)
        self.deadline_s = at_s + 30.0

    def died(self, config: EngineConfig) -> bool:
        return any(int(config.knobs[name]) >= least for name, least in self.dies.items())

    def run(self, config: EngineConfig, noise: float) -> Run:
        slower = float(np.exp(noise))
        for pair in config.knobs.items():
            slower *= self.hidden.get(pair, 1.0)
        step = self.truth.at(config).scaled(slower)
        limits = limits_of(config, self.kv_tokens)
        return simulate(config, self.workload, step, limits, deadline_s=self.deadline_s, detailed=True)

    def trial(self, config: EngineConfig, seed: int, before: int = 0) -> tuple[Run | None, float]:
        """A measured run (None: it died) and the engine seconds it took; the same seed gives the same noise, and other
        noise where the config was tried ``before``."""
        if self.died(config):
            return None, START_S
        key = hashlib.sha256(f"{seed}{config.key}{before or ''}".encode()).digest()
        run = self.run(config, random.Random(key).gauss(0, NOISE))
        return run, START_S + run.end_ns * 1e-9

    def exact(self, config: EngineConfig) -> float:
        """Goodput without noise; 0 for a config that dies."""
        if self.died(config):
            return 0.0
        if config.key not in self._exact:
            self._exact[config.key] = self.run(config, 0.0).metrics(self.slo)
        return self._exact[config.key].goodput_per_s or 0.0


def _with_context(config: EngineConfig) -> EngineConfig:
    """Room for the longest request in every slot, as the adapter sees to: llama.cpp refuses what a slot cannot hold."""
    return config.replace(n_ctx=LONGEST * int(config.knobs["n_parallel"])) if "n_parallel" in config.knobs else config


def cases() -> list[Case]:
    """Eight engines: model, card, traffic and what nobody told the predictor."""
    chat, short_answers, long_prompts = ((6.0, 0.9), (4.9, 0.7)), ((5.5, 0.8), (3.5, 0.6)), ((7.4, 0.5), (4.6, 0.5))
    backends = {("attention_backend", "b"): 0.88, ("attention_backend", "c"): 1.15, ("block_size", 32): 1.02}
    others = {("attention_backend", "b"): 1.10, ("attention_backend", "c"): 0.95, ("block_size", 32): 0.97}
    flash = {("flash_attn", "on"): 0.93, ("flash_attn", "off"): 1.04, ("n_ubatch", 256): 0.95}
    tight, loose = Slo(ttft_s=0.5, tpot_s=0.03), Slo(ttft_s=2.0, tpot_s=0.1)
    return [
        Case("8B H100 chat", LLAMA_8B, H100, "vllm", 30.0, *chat, tight, 1, 150, 400_000, backends),
        Case("8B A100 long prompts", LLAMA_8B, A100, "vllm", 4.0, *long_prompts, Slo(ttft_s=1.0, tpot_s=0.05), 2, 80,
             380_000, others),
        Case("8B L4 chat", LLAMA_8B, L4, "vllm", 2.5, *chat, loose, 3, 80, 40_000, backends, {"max_num_seqs": 256}),
        Case("14B A100 short answers", QWEN_14B, A100, "vllm", 6.0, *short_answers, loose, 4, 120, 240_000, others,
             {"max_num_batched_tokens": 8192}),
        Case("7B MHA A100 chat", LLAMA_7B, A100, "vllm", 12.0, *chat, tight, 5, 120, 100_000, backends),
        Case("14B H100 long prompts", QWEN_14B, H100, "vllm", 5.0, *long_prompts, Slo(ttft_s=1.0, tpot_s=0.04), 6, 80,
             250_000, others),
        Case("135M CPU chat", SMOL, CPU8, "llamacpp", 4.0, (5.0, 0.7), (3.8, 0.6), Slo(ttft_s=1.5, tpot_s=0.06), 7, 60,
             None, flash),
        Case("135M CPU long prompts", SMOL, CPU8, "llamacpp", 1.5, (6.5, 0.5), (3.5, 0.5), Slo(ttft_s=3.0, tpot_s=0.1),
             8, 50, None, flash),
    ]  # fmt: skip
