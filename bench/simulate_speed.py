"""How fast the simulator is: requests per second of one core, on a real trace and as batch and lengths grow.

python bench/simulate_speed.py --traffic ../shared/field/traffic/AzureLLMInferenceTrace_conv.csv
"""

import argparse
import time

import msgspec

from powerband.load.traffic import build_workload
from powerband.probes.config_model import model_from_config
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig
from powerband.records.workload import Workload
from powerband.simulate.loop import simulate
from powerband.simulate.scheduler import limits_of
from powerband.simulate.step_time import predict_from_datasheet

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def requests_per_s(workload: Workload, kv_tokens: int | None, repeats: int) -> tuple[float, float]:
    """Simulated requests a second of one core, the best of ``repeats``, and the mean number inside (waiting, too)."""
    config = EngineConfig(engine="vllm", model="llama-3.1-8b")
    step = predict_from_datasheet(model_from_config("llama-3.1-8b", LLAMA_8B, "bench"), read_device("h100"), config)
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        run = simulate(config, workload, step, limits_of(config, kv_tokens))
        seconds.append(time.process_time() - began)
    inside_ns = sum(trace.t_end_ns - trace.t_sched_ns for trace in run.traces if trace.t_end_ns is not None)
    return len(workload.requests) / min(seconds), inside_ns / run.end_ns


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traffic", required=True, help="a trace, simulated whole, or a spec (with --requests)")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    def traffic(in_flight: int | None = None, *, rate: float = 1.0, lengths: float = 1.0) -> Workload:
        made = build_workload(args.traffic, requests=args.requests, scale_rate=rate, scale_lengths=lengths)
        return msgspec.structs.replace(made, concurrency=in_flight)

    cases: list[tuple[str, Workload, int | None]] = [
        *(("as it comes", traffic(), kv_tokens) for kv_tokens in (None, 400_000, 60_000, 20_000)),
        *(("4 times the rate", traffic(rate=4.0), kv_tokens) for kv_tokens in (None, 60_000)),
        *((f"closed loop of {n}", traffic(n), 400_000) for n in (1, 4, 16, 64, 256)),
        *((f"closed loop of 64, {k} times the length", traffic(64, lengths=k), 400_000) for k in (0.25, 0.5, 2, 4)),
    ]
    print("| traffic | KV tokens | requests inside | simulated requests/s |\n| --- | --- | --- | --- |")
    for name, workload, kv_tokens in cases:
        speed, inside = requests_per_s(workload, kv_tokens, args.repeats)
        memory = "no limit" if kv_tokens is None else f"{kv_tokens:,}"
        print(f"| {name} | {memory} | {inside:,.0f} | {speed:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
