"""How fast the simulator is: requests per second of one core, on a real trace and as batch and lengths grow.

python bench/simulate_speed.py --traffic ../shared/field/traffic/AzureLLMInferenceTrace_conv.csv
"""

import argparse
import time

from powerband.load.traffic import build_workload
from powerband.probes.config_model import model_from_config
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig
from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.loop import simulate
from powerband.simulate.scheduler import limits_of
from powerband.simulate.step_time import StepTime, predict_from_datasheet

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


def requests_per_s(step: StepTime, workload: Workload, slots: int, kv_tokens: int | None, repeats: int) -> float:
    config = EngineConfig(engine="vllm", model="llama-3.1-8b", knobs={"max_num_seqs": slots})
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        simulate(config, workload, step, limits_of(config, kv_tokens))
        best = min(best, time.perf_counter() - began)
    return len(workload.requests) / best


def equal(count: int, rate_per_s: float, prompt: int, answer: int) -> Workload:
    gap = 1e9 / rate_per_s
    specs = (RequestSpec(offset_ns=round(i * gap), input_tokens=prompt, output_tokens=answer) for i in range(count))
    return Workload(requests=tuple(specs), source="equal requests")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traffic", help="a trace to simulate whole")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    config = EngineConfig(engine="vllm", model="llama-3.1-8b")
    step = predict_from_datasheet(model_from_config("llama-3.1-8b", LLAMA_8B, "bench"), read_device("h100"), config)
    print("| traffic | slots | KV tokens | simulated requests/s |\n| --- | --- | --- | --- |")
    if args.traffic:
        trace = build_workload(args.traffic)
        for kv_tokens in (None, 400_000, 60_000):
            speed = requests_per_s(step, trace, 256, kv_tokens, args.repeats)
            print(f"| {len(trace.requests)} requests of the trace | 256 | {kv_tokens or 'no limit'} | {speed:,.0f} |")
    for slots in (1, 16, 256):
        speed = requests_per_s(step, equal(5000, 20.0, 500, 200), slots, None, args.repeats)
        print(f"| 5000 of 500 + 200 tokens | {slots} | no limit | {speed:,.0f} |")
    for prompt, answer in ((100, 50), (2000, 500), (20_000, 1000)):
        speed = requests_per_s(step, equal(3000, 5.0, prompt, answer), 64, None, args.repeats)
        print(f"| 3000 of {prompt} + {answer} tokens | 64 | no limit | {speed:,.0f} |")


if __name__ == "__main__":
    main()
