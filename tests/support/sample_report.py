"""A loop's report and its runs, written by hand: what a report must be able to show, unpleasant cases included.

The requests are laid out by a few lines of arithmetic (a queue before a number of slots), so that plots look like real
ones; every other figure is a literal. Nothing here was measured.
"""

from typing import Literal

import msgspec

from powerband.records.config import Effective, EngineConfig
from powerband.records.finding import Diagnosis, Finding, Share
from powerband.records.hardware import DeviceSpec
from powerband.records.memory import Capacity, MemoryLedger, MemoryLine, Remedy
from powerband.records.metrics import Distribution
from powerband.records.model import LayerGroup, ModelSpec
from powerband.records.request import RequestTrace
from powerband.records.rounds import LoopReport, Round, TrafficSummary
from powerband.records.run import ClientCheck, Contention, Predicted, Provenance, Run, Trial
from powerband.records.slo import Slo
from powerband.records.value import Interval, Missing
from powerband.records.verdict import Compared, QualityResult, Verdict
from powerband.records.workload import RequestSpec, Workload

HOSTILE = "<script>alert(1)</script>\"'><img src=http://evil.example/x.png>"
HOSTILE_LOG = "[red]ggml_abort[/red] \x1b[31mout of memory\x1b[0m | `rm` \u202e</td><svg onload=alert(2)>"
SESSION = "2026-11-03-7f3a"
SLO = Slo(ttft_s=1.5, tpot_s=0.1, attainment=0.95)
MODEL = "SmolLM2-135M-Instruct"
NAIVE = EngineConfig(
    engine="llamacpp",
    model=MODEL,
    knobs={
        "n_parallel": 1,
        "n_batch": 2048,
        "n_threads": 2,
        "flash_attn": "auto",
        "cont_batching": False,
        "n_ctx": 4096,
        "cache_type_k": "f16",
    },
)
PROVENANCE = Provenance(
    powerband="0.1.0",
    command="powerband loop --engine llamacpp --traffic azure.csv --slo ttft=1500ms,tpot=100ms --budget 10m",
    started_at="2026-11-03T12:03:41+00:00",
    host="bench-2 x86_64 Linux 6.1",
    engine_version="xllamacpp 2026.10 (llama.cpp b9371)",
    python="3.11.9",
)
CHOSEN = NAIVE.replace(n_parallel=8, cont_batching=True, n_ctx=16384)


def spread(index: int, step: int, low: int, high: int) -> int:
    """Numbers that look scattered and are the same everywhere."""
    return low + (index * step) % (high - low + 1)


def workload(requests: int = 96) -> Workload:
    specs, offset = [], 0
    for index in range(requests):
        specs.append(
            RequestSpec(
                offset_ns=offset,
                input_tokens=spread(index, 173, 24, 640),
                output_tokens=spread(index, 37, 8, 96),
            )
        )
        offset += spread(index, 331, 150, 861) * 1_000_000
    return Workload(
        requests=tuple(specs),
        source="AzureLLMInferenceTrace_conv.csv (first 96 requests)",
        scaling="lengths x 0.25, arrivals x 0.5",
        seed=7,
    )


def traces(load: Workload, slots: int, deadline_ns: int, slow: float = 1.0) -> tuple[RequestTrace, ...]:
    """Each request takes the slot that is free first; a step takes longer the more slots there are."""
    free = [0] * slots
    step_ns = int(9_400_000 * slow * (1 + 0.45 * (slots - 1)))
    out = []
    for index, spec in enumerate(load.requests):
        slot = min(range(slots), key=lambda number: free[number])
        start = max(free[slot], spec.offset_ns)
        first = start + int(spec.input_tokens * 200_000 * slow) + step_ns
        chunks = [first + step_ns * n + (n * n % 7) * 200_000 for n in range(spec.output_tokens)]
        status, error, end = "ok", None, chunks[-1]
        if index in (17, 58):
            status, error, chunks = "error", f"stream_error: {HOSTILE_LOG}", chunks[:5]
            end = chunks[-1] + 1_000_000
        elif end > deadline_ns:
            status, chunks = "dropped", [t_ns for t_ns in chunks if t_ns <= deadline_ns]
        free[slot] = end
        out.append(
            RequestTrace(
                index=index,
                status="ok" if status == "ok" else ("error" if status == "error" else "dropped"),
                input_tokens=spec.input_tokens,
                output_tokens_asked=spec.output_tokens,
                t_sched_ns=spec.offset_ns,
                t_send_ns=spec.offset_ns + 400_000,
                t_end_ns=None if status == "dropped" else end,
                t_chunks_ns=tuple(chunks),
                chunk_tokens=(1,) * len(chunks),
                error=error,
            )
        )
    return tuple(out)


def delay(p50: float) -> Distribution:
    return Distribution(mean=p50 * 1.1, p50=p50, p90=p50 * 2, p99=p50 * 4, n=96)


def make_run(key: str, config: EngineConfig, slow: float = 1.0, minute: int = 4) -> Run:
    load = workload()
    slots = int(config.knobs["n_parallel"])
    deadline = load.requests[-1].offset_ns + 10_000_000_000
    served = traces(load, slots, deadline, slow)
    ends = [trace.t_end_ns for trace in served]
    return Run(
        run_id=f"{SESSION}.{key}",
        basis="measured",
        config=config,
        effective=Effective(
            values={**config.knobs, "flash_attn": "on", "n_ctx": 16384 if slots == 8 else 4096},
            source="/props and the startup log",
            differs={"n_batch": "asked 2048, runs 512"} if slots == 8 else {},
        ),
        workload=load,
        traces=served,
        end_ns=deadline if None in ends else max(end for end in ends if end is not None),
        client=ClientCheck(
            verdict="ok",
            reason="sent on time: p99 delay 1.6 ms",
            schedule_delay_s=delay(0.0004),
            loop_lag_s=delay(0.0002),
            cpu_ratio=0.06,
            offered_per_s=1.97,
            sent_per_s=1.97,
        ),
        contention=Contention(contended=False, reason="others used 0.04 of 2 cores", other_cores=0.04),
        provenance=msgspec.structs.replace(PROVENANCE, started_at=f"2026-11-03T12:{minute:02d}:09+00:00"),
        startup_s=0.8,
        notes=(f"2 answers ended early: {HOSTILE_LOG}",) if key == "baseline" else (),
    )


def predicted(objective: float, low: float, high: float, rate: float) -> Predicted:
    return Predicted(objective=objective, interval=Interval(low=low, high=high), output_tokens_per_s=rate)


def sample_runs() -> dict[str, Run]:
    runs = [
        make_run("baseline", NAIVE),
        make_run("tune-1", NAIVE.replace(n_parallel=4, cont_batching=True, n_ctx=8192), minute=6),
        make_run("tune-3", CHOSEN, minute=8),
        make_run("tune-4", CHOSEN.replace(n_threads=1), slow=1.9, minute=9),
        make_run("tune-6", CHOSEN.replace(cache_type_k="q8_0"), slow=9.0, minute=11),
        *(make_run(f"before-{n}", NAIVE, slow=1 - 0.004 * n, minute=12 + n) for n in (1, 2, 3)),
        *(make_run(f"after-{n}", CHOSEN, slow=1 + 0.02 * n, minute=16 + n) for n in (1, 2, 3)),
    ]
    return {run.run_id: run for run in runs}


def sample_trials(runs: dict[str, Run]) -> tuple[Trial, ...]:
    def done(n: int, key: str, purpose: str = "tune", forecast: Predicted | None = None) -> Trial:
        run = runs[f"{SESSION}.{key}"]
        return Trial(
            n=n,
            purpose="baseline" if purpose == "baseline" else ("verify" if purpose == "verify" else "tune"),
            config=run.config,
            status="done",
            predicted=forecast,
            measured=run.metrics(SLO),
            run_id=run.run_id,
            engine_seconds=49.3,
            startup_s=0.8,
        )

    contended = runs[f"{SESSION}.tune-6"]
    return (
        done(1, "baseline", "baseline"),
        done(2, "tune-1", forecast=predicted(1.55, 1.2, 1.85, 120.0)),
        Trial(
            n=3,
            purpose="tune",
            config=CHOSEN.replace(n_parallel=64, n_ctx=131072),
            status="pruned",
            cause="does not fit: the KV cache alone needs 2.81 GiB more than the 7.75 GiB of cpu",
        ),
        done(4, "tune-3", forecast=predicted(1.93, 1.6, 2.3, 158.0)),
        done(5, "tune-4", forecast=predicted(1.7, 1.2, 2.2, 131.0)),
        Trial(
            n=6,
            purpose="tune",
            config=CHOSEN.replace(n_batch=64),
            status="failed",
            predicted=predicted(1.9, 1.3, 2.5, 160.0),
            cause=f"the engine died at start, exit code 134; {HOSTILE_LOG}",
            engine_seconds=3.1,
        ),
        Trial(
            n=7,
            purpose="tune",
            config=contended.config,
            status="contended",
            predicted=predicted(1.9, 1.4, 2.5, 161.0),
            measured=contended.metrics(SLO),
            run_id=contended.run_id,
            cause="other processes used 1.4 of 2 cores for 31 s: the engine's threads waited for them",
            engine_seconds=61.0,
        ),
        *(done(7 + n, f"before-{n}", "verify") for n in (1, 2, 3)),
        *(done(10 + n, f"after-{n}", "verify") for n in (1, 2, 3)),
    )


def sample_rounds() -> tuple[Round, ...]:
    return (
        Round(
            n=1,
            cause="no_batching",
            change={"n_parallel": 4, "cont_batching": True, "n_ctx": 8192},
            why="one slot serves all of the traffic; four slots share a decode step",
            trial=2,
            predicted=predicted(1.55, 1.2, 1.85, 120.0),
            measured=1.90,
            outcome="better",
        ),
        Round(
            n=2,
            cause="queueing",
            change={"n_parallel": 8, "n_ctx": 16384},
            why="requests still wait 0.1 s for a slot at p90",
            trial=4,
            predicted=predicted(1.93, 1.6, 2.3, 158.0),
            measured=1.867,
            outcome="better",
        ),
        Round(
            n=3,
            cause="compute_bound",
            change={"n_threads": 1},
            why="two threads on two cores leave none for the client",
            trial=5,
            predicted=predicted(1.7, 1.2, 2.2, 131.0),
            measured=1.705,
            outcome="not_better",
        ),
        Round(
            n=4,
            cause="memory_bandwidth_bound",
            change={"n_batch": 64},
            why="a smaller batch stays in the cache",
            trial=6,
            predicted=predicted(1.9, 1.3, 2.5, 160.0),
            measured=None,
            outcome="failed",
        ),
        Round(
            n=5,
            cause="undecided",
            change={"cache_type_k": "q8_0", "cache_type_v": "q8_0", "n_ubatch": 512, "n_threads_batch": 2},
            why=f"nothing stands out; model says {HOSTILE}",
            trial=7,
            predicted=None,
            measured=None,
            outcome="unusable",
        ),
    )


def compared(
    name: str,
    before: float,
    after: float,
    low: float,
    high: float,
    better: Literal["higher", "lower"] = "lower",
    verdict: Literal["better", "worse", "same", "undecided"] = "better",
) -> Compared:
    return Compared(
        name=name,
        before=before,
        after=after,
        ratio=after / before,
        interval=Interval(low=low, high=high),
        better=better,
        verdict=verdict,
    )


def sample_verdict() -> Verdict:
    return Verdict(
        verdict="keep",
        reason="Goodput rose by more than the noise floor in every pair of runs.",
        metrics=(
            compared("goodput_per_s", 0.4443, 1.866, 3.6, 4.9, "higher"),
            compared("attainment", 0.246, 0.979, 3.4, 4.6, "higher"),
            compared("output_tokens_per_s", 92.6, 97.2, 1.03, 1.07, "higher"),
            compared("ttft_p50_s", 3.082, 0.1083, 0.031, 0.041),
            compared("ttft_p99_s", 5.113, 0.1702, 0.029, 0.038),
            compared("tpot_p50_s", 0.00938, 0.0402, 4.21, 4.36, verdict="worse"),
            compared("tpot_p99_s", 0.00952, 0.0403, 4.1, 4.4, verdict="worse"),
            compared("request_rate_per_s", 1.74, 1.79, 0.98, 1.08, "higher", "undecided"),
        ),
        noise_floor=0.043,
        minimum_effect=0.03,
        quality=QualityResult(verdict="not_needed", reason="no changed setting alters the answers"),
        repeats=3,
        excluded=1,
        notes=("1 run after the change was left out: contended",),
    )


def sample_ledger() -> MemoryLedger:
    mib = 1 << 20
    lines = (
        MemoryLine(
            name="weights",
            bytes=98 * mib,
            interval_bytes=Interval(low=98 * mib, high=98 * mib),
            basis="measured",
            why="sum of the 272 tensors in the GGUF header",
        ),
        MemoryLine(
            name="kv_cache",
            bytes=360 * mib,
            interval_bytes=Interval(low=360 * mib, high=360 * mib),
            basis="computed",
            why="2 x 30 layers x 3 KV heads x 64 x 2 bytes = 22.5 KiB a token, 16,384 tokens",
        ),
        MemoryLine(
            name="activation",
            bytes=131 * mib,
            interval_bytes=Interval(low=96 * mib, high=190 * mib),
            basis="computed",
            why="logits and hidden states of one micro-batch of 512 tokens",
        ),
        MemoryLine(
            name="non_torch",
            bytes=64 * mib,
            interval_bytes=Interval(low=40 * mib, high=120 * mib),
            basis="assumed",
            why="server process, buffers of 8 slots",
        ),
        MemoryLine(
            name="cuda_graphs",
            bytes=0,
            interval_bytes=Interval(low=0, high=0),
            basis="computed",
            why="the engine does not capture graphs on a CPU",
        ),
        MemoryLine(
            name="unused",
            bytes=(7936 - 98 - 360 - 131 - 64) * mib,
            interval_bytes=Interval(low=7160 * mib, high=7342 * mib),
            basis="computed",
            why="what the device has beyond the lines above",
        ),
    )
    return MemoryLedger(
        model=MODEL,
        device="cpu",
        memory_bytes=7936 * mib,
        ranks=1,
        lines=lines,
        capacity=Capacity(kv_bytes_per_token=23040, kv_tokens=16384, max_concurrency=2.0, users_at_traffic=43.6),
        fits=True,
        remedies=(
            Remedy(name="KV dtype", change="cache_type_k=q8_0, cache_type_v=q8_0", predicted="30,800 tokens, 1.9x"),
        ),
        assumed=("non_torch: 64 MiB, from other runs of this engine",),
    )


def shares(whole: float, parts: dict[str, float]) -> tuple[Share, ...]:
    return tuple(Share(name=name, seconds=seconds, share=seconds / whole) for name, seconds in parts.items())


def sample_diagnoses() -> tuple[Diagnosis, Diagnosis]:
    before = Diagnosis(
        sources=("request timings", "/metrics", "/proc of the engine"),
        window_s=46.8,
        breakdown=shares(
            46.8,
            {
                "prefill": 11.2,
                "decode": 34.1,
                "host": 0.4,
                "contention": 0.0,
                "client": 0.1,
                "no work": 1.0,
                "unseen": 0.0,
            },
        ),
        verdict="no_batching",
        reason="one request is in service at a time while 6.2 others wait",
        findings=(
            Finding(
                cause="no_batching",
                share=0.829,
                evidence="Requests wait 3.0 s (p50) for the only slot, then decode at 9.4 ms a token;"
                " never more than 1 is running.",
                remedy="n_parallel=8 with cont_batching=on: about 1.6 times the output tokens/s.",
                test="The same traffic with n_parallel=1, 2, 4, 8: output tokens/s must rise with it.",
                status="confirmed",
                of="request_time",
            ),
            Finding(
                cause="memory_bandwidth_bound",
                share=0.41,
                evidence="A decode step of one sequence reads 98 MiB in 9.4 ms: 10.9 GB/s of the 14.2 GB/s"
                " that the host was measured at.",
                remedy="A larger batch reads the weights once for all of its sequences.",
                test="Half the threads: the step time must stay.",
            ),
        ),
        unseen=("steps: the engine does not count them",),
        request_breakdown=shares(
            3.63, {"client": 0.01, "queueing": 3.01, "host": 0.02, "prefill": 0.07, "decode": 0.48, "unanswered": 0.04}
        ),
        mean_request_s=3.63,
        notes=("queueing was inferred from the order of service",),
    )
    after = Diagnosis(
        sources=("request timings", "/metrics"),
        window_s=42.4,
        breakdown=shares(
            42.4,
            {
                "prefill": 10.3,
                "decode": 27.9,
                "host": 0.6,
                "contention": 0.3,
                "client": 0.1,
                "no work": 2.9,
                "unseen": 0.3,
            },
        ),
        verdict="compute_bound",
        findings=(
            Finding(
                cause="compute_bound",
                share=0.658,
                evidence="8 sequences a step take 50 ms on 2 cores that are 98 % busy.",
                remedy="More cores; 8-bit weights would not help.",
                test="The same traffic on 4 cores.",
                status="suspected",
            ),
        ),
        unseen=("KV use: the engine does not expose it",),
        request_breakdown=shares(
            2.15,
            {
                "client": 0.01,
                "queueing": 0.03,
                "host": 0.03,
                "prefill": 0.08,
                "decode": 1.73,
                "decode held up by prefill": 0.27,
            },
        ),
        mean_request_s=2.15,
    )
    return before, after


def sample_report() -> LoopReport:
    runs = sample_runs()
    before, after = sample_diagnoses()
    return LoopReport(
        session_id=SESSION,
        model=ModelSpec(
            name=MODEL,
            architecture="llama",
            layers=(LayerGroup(count=30, kind="attention", kv_heads=3, head_dim=64),),
            hidden=576,
            heads=9,
            vocab=49152,
            parameters=134515008,
            active_parameters=134515008,
            weight_bytes=98 << 20,
            weight_dtype="q4_1",
            basis="measured",
            context_tokens=8192,
            assumed=("compute dtype: fp32 on a CPU",),
        ),
        device=DeviceSpec(
            name="cpu",
            vendor="intel",
            kind="cpu",
            memory_bytes=7936 << 20,
            bandwidth_bytes_per_s=14.2e9,
            flops_per_s={"fp32": 1.2e11},
            source="/proc/meminfo; bandwidth measured at start",
            cores=2,
        ),
        traffic=TrafficSummary(
            source="AzureLLMInferenceTrace_conv.csv (first 96 requests)",
            scaling="lengths x 0.25, arrivals x 0.5",
            requests=96,
            input_tokens_mean=329.8,
            output_tokens_mean=51.3,
            longest_tokens=707,
            request_rate_per_s=1.97,
            concurrency=None,
        ),
        slo=SLO,
        objective="goodput_per_s",
        ledger=sample_ledger(),
        trials=sample_trials(runs),
        rounds=sample_rounds(),
        baseline_trial=1,
        best_trial=4,
        diagnosis_before=before,
        diagnosis_after=after,
        verdict=sample_verdict(),
        chosen=CHOSEN,
        start_command=(
            "llama-server --model SmolLM2-135M-Instruct-Q4_1.gguf --host 127.0.0.1 --port 8080 --parallel 8"
            " --cont-batching --ctx-size 16384 --threads 2 --batch-size 2048 --metrics"
        ),
        budget_s=600.0,
        engine_seconds=557.4,
        stopped_because="the last two rounds gained less than they cost",
        provenance=PROVENANCE,
        notes=("The prompts were made of random words to the trace's token counts.",),
    )


def hostile_report() -> LoopReport:
    """The same with markup, escapes and odd characters in every text that comes from outside."""
    report = sample_report()
    assert report.model is not None
    assert report.device is not None
    return msgspec.structs.replace(
        report,
        session_id=f"s-{HOSTILE}",
        model=msgspec.structs.replace(report.model, name=HOSTILE, assumed=(HOSTILE_LOG,)),
        device=msgspec.structs.replace(report.device, name=HOSTILE, source=HOSTILE_LOG),
        traffic=msgspec.structs.replace(report.traffic, source=HOSTILE, scaling=HOSTILE_LOG),
        stopped_because=HOSTILE_LOG,
        start_command=f"llama-server --model '{HOSTILE}' ``` {HOSTILE_LOG}",
        notes=(HOSTILE, HOSTILE_LOG),
    )


def unverified_report() -> LoopReport:
    """No verdict, no SLO, no ledger, no model: an attached server, and a baseline that delivered nothing in time."""
    report = sample_report()
    trials = tuple(
        msgspec.structs.replace(
            trial, measured=msgspec.structs.replace(trial.measured, goodput_per_s=0.0, attainment=0.0)
        )
        if trial.n == 1 and trial.measured is not None
        else trial
        for trial in report.trials
    )
    return msgspec.structs.replace(
        report, verdict=None, chosen=None, ledger=None, model=None, device=None, diagnosis_after=None, trials=trials
    )


def zero_baseline_report() -> LoopReport:
    """A baseline without a single good request: there is no ratio."""
    report = sample_report()
    assert report.verdict is not None
    none = Missing(missing="from 0: a ratio to nothing has no size")
    goodput = Compared(
        name="goodput_per_s", before=0.0, after=1.866, ratio=none, interval=None, better="higher", verdict="better"
    )
    metrics = (goodput, *report.verdict.metrics[2:])
    return msgspec.structs.replace(report, verdict=msgspec.structs.replace(report.verdict, metrics=metrics))


def bare_run(run: Run) -> Run:
    """A run of which nothing but the requests was recorded."""
    reason = Missing(missing="the engine has no such endpoint")
    return msgspec.structs.replace(run, effective=reason, client=reason, contention=reason, provenance=reason)
