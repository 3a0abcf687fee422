"""The fake server's settings: times, sizes and planted faults, one field each."""

import argparse
import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from powerband.records.errors import RequestError

MODES = ("timed", "batched")
DIALECTS = ("llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm", "mlx")
BITS = (16, 8, 4)


def _option(default: Any, text: str, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(slots=True)
class Options:
    """Every setting of ``python -m powerband.engines.fake_server``, where ``step_ms`` is written ``--step-ms``."""

    host: str = _option("127.0.0.1", "address to bind")
    port: int = _option(0, "port to bind; 0 takes a free one")
    model: str = _option("fake", "model name to report")
    mode: str = _option("batched", "timed: every request alone, exact times; batched: slots share steps", MODES)
    dialect: str = _option("llamacpp", "whose pages, metric names and usage chunk to speak", DIALECTS)
    settings: str = _option("", "JSON object of settings to report where the dialect has a page for them")
    api_key: str = _option("", "refuse requests without this bearer token")
    context: int = _option(0, "longest prompt plus answer of one request in tokens; 0: no limit")
    vocab: int = _option(32000, "token ids are below this")
    tokens_per_chunk: int = _option(1, "answer tokens that share one streamed chunk (and one instant)")
    eos_after: int = _option(0, "end the answer after this many tokens unless ignore_eos; 0: never")
    # timed
    ttft_ms: float = _option(20.0, "timed: first token this long after the request was read")
    itl_ms: float = _option(5.0, "timed: gap between chunks")
    # batched
    slots: int = _option(4, "batched: requests that share a step")
    static: bool = _option(False, "batched: static batching, a batch is held until its longest answer ends")
    step_ms: float = _option(10.0, "batched: time of a step, whatever is in it")
    step_ms_per_seq: float = _option(0.5, "batched: added per decoding sequence in the step")
    prefill_tokens_per_s: float = _option(2000.0, "batched: prompt tokens add their time to the step at this rate")
    chunk_tokens: int = _option(512, "batched: most prompt tokens in one step")
    kv_tokens: int = _option(0, "batched: size of the KV pool in tokens; 0: no limit")
    kv_policy: str = _option("preempt", "batched: pool full: preempt and recompute, or queue", ("preempt", "queue"))
    bits: int = _option(16, "width of the imitated weights: 8 and 4 shorten a step and change the answers")
    tokenizer_ms: float = _option(0.0, "serial host work before a request can be scheduled")
    text_ms: float = _option(0.0, "more of it for a prompt that comes as text and not as token ids")
    # faults
    error_rate: float = _option(0.0, "share of requests answered with HTTP 503, evenly spread")
    fault_every: int = _option(1, "the stream faults below hit each Nth request only")
    reset_after: int = _option(-1, "reset the connection after this many tokens; -1: never")
    stall_after: int = _option(-1, "send nothing more after this many tokens, connection open; -1: never")
    malformed_after: int = _option(-1, "send a chunk that is no JSON after this many tokens; -1: never")
    stall: bool = _option(False, "accept connections and never answer")
    die_after: int = _option(0, "exit with code 1 when this many requests have been read; 0: never")
    startup_delay: float = _option(0.0, "seconds during which /health says 503")
    fail_start: bool = _option(False, "write an error to stderr and exit with code 1 instead of starting")
    log_times: str = _option("", "append a JSON line per answer to this file: when it was read, when tokens were due")

    def fault_hits(self, index: int) -> bool:
        """Whether request ``index`` (from 0) is one that the stream faults hit."""
        return (index + 1) % self.fault_every == 0

    def error_hits(self, index: int) -> bool:
        """Evenly spread: of the first n requests, floor(n * error_rate) fail."""
        return int((index + 1) * self.error_rate + 1e-9) > int(index * self.error_rate + 1e-9)


def parse_options(argv: list[str]) -> Options:
    """Read the command line; raises RequestError on a value that makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m powerband.engines.fake_server", description="An LLM server with known token times."
    )
    for item in dataclasses.fields(Options):
        flag, text = "--" + item.name.replace("_", "-"), item.metadata["help"]
        if item.type is bool:
            parser.add_argument(flag, action="store_true", help=text)
        else:
            parser.add_argument(
                flag,
                type=item.type,
                default=item.default,
                choices=item.metadata["choices"],
                help=f"{text} (%(default)s)",
            )
    options = Options(**vars(parser.parse_args(argv)))
    check_options(options)
    return options


def check_options(options: Options) -> None:
    """Raise RequestError where a time is negative, a rate is no share, or a size is below its least."""
    least = {"ttft_ms": 0, "itl_ms": 0, "step_ms": 0, "step_ms_per_seq": 0, "tokenizer_ms": 0, "startup_delay": 0}
    least |= {"text_ms": 0}
    least |= {"slots": 1, "chunk_tokens": 1, "vocab": 1, "tokens_per_chunk": 1, "fault_every": 1, "port": 0}
    least |= {"kv_tokens": 0, "context": 0, "eos_after": 0, "die_after": 0}
    for name, low in least.items():
        if not getattr(options, name) >= low:
            raise RequestError(f"{name}={getattr(options, name)} is too small", hint=f"accepted: {low} or more")
    if options.bits not in BITS:
        raise RequestError(f"bits={options.bits} is no width", hint=f"accepted: {', '.join(map(str, BITS))}")
    if not 0 <= options.error_rate <= 1:
        raise RequestError(f"error_rate={options.error_rate} is no share", hint="accepted: 0 to 1")
    if not options.prefill_tokens_per_s > 0:
        raise RequestError("prefill_tokens_per_s must be above 0", hint="accepted: above 0")
    if options.step_ms == 0 and options.step_ms_per_seq == 0:
        raise RequestError("a step would take no time", hint="set step_ms or step_ms_per_seq above 0")


def to_argv(values: dict[str, Any]) -> list[str]:
    """The command line that gives these settings."""
    argv: list[str] = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            argv += [flag] if value else []
        else:
            argv += [flag, value if isinstance(value, str) else json.dumps(value)]
    return argv
