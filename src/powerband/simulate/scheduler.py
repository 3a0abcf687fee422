"""What an engine's scheduler allows in one step: slots, token budgets, memory."""

from typing import Literal

import msgspec

from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.model import ModelSpec
from powerband.records.value import Record
from powerband.records.workload import Workload

# continuous: a freed slot is refilled at the next step; static: prompts start only when nothing is generating.
Batching = Literal["continuous", "static"]

# vLLM's defaults for an OpenAI server on a large card (vllm/engine/arg_utils.py, V1); smaller cards use less.
VLLM_SEQUENCES, VLLM_BATCHED_TOKENS, VLLM_BLOCK = 256, 8192, 16


# What transformers takes in one step of continuous batching where not told: it sizes this by the memory (assumed).
CONTINUOUS_TOKENS = 2048
UNBOUND = 1 << 20

_SERVERS = ("sglang", "tgi", "tensorrt-llm", "mlx")
MODELLED = ("llamacpp", "vllm", "fake", "transformers", "openvino", *_SERVERS)
# What is longer than the model's own context they refuse; OpenVINO's pipeline and mlx_lm.server go on.
REFUSE_LONG = ("llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm", "transformers")
# How much the cache holds bounds the batch; elsewhere each slot has its own part.
PAGED = ("vllm", "sglang", "tgi", "tensorrt-llm")


class Speculation(Record):
    """Each step checks ``draft_tokens`` guesses of every decoding sequence, each right with chance ``acceptance`` if
    those before it were. Drafting takes ``draft_share`` of a plain decode step for each guess (0: from n-grams)."""

    draft_tokens: int
    acceptance: float
    draft_share: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens of a step: the right guesses and one more (Leviathan et al., 2023, eq. 1)."""
        if self.acceptance >= 1.0:
            return self.draft_tokens + 1.0
        return (1.0 - self.acceptance ** (self.draft_tokens + 1)) / (1.0 - self.acceptance)


class Limits(Record):
    """Limits of one step.

    At most ``slots`` sequences run. A step holds at most ``batch_tokens``: one for each decoding sequence first, then
    prompts in the order of admission (at most ``prompt_tokens`` of them), cut into chunks where ``chunked``.
    ``kv_tokens`` None: memory never binds. ``slot_tokens``: the longest prompt plus answer that one sequence may hold;
    a longer one is refused. ``prefix_cache``: prompts find heads and blocks that were computed before.
    ``split_rows``: only sequences in neighbouring slots share a pass, and prompts have passes of their own.
    ``prompts_first``: while a prompt waits, passes hold prompts alone and decoding stands still.
    ``ahead``: a step is made up while the one before it runs, so that what comes meanwhile waits for one step more.
    """

    slots: int
    batch_tokens: int
    prompt_tokens: int | None = None
    batching: Batching = "continuous"
    chunked: bool = True
    kv_tokens: int | None = None
    block_tokens: int = 1
    slot_tokens: int | None = None
    prefix_cache: bool = False
    split_rows: bool = False
    prompts_first: bool = False
    ahead: bool = False
    speculation: Speculation | None = None

    @property
    def most_prompt_tokens(self) -> int:
        """Prompt tokens that a step can hold when nothing decodes."""
        return self.batch_tokens if self.prompt_tokens is None else min(self.batch_tokens, self.prompt_tokens)

    def never_fits(self, tokens: int) -> bool:
        """Whether a prompt and its answer are longer than what one sequence may ever hold."""
        slot, kv = self.slot_tokens, self.kv_tokens
        return (slot is not None and tokens > slot) or (kv is not None and tokens > kv)

    def refuses_all(self, workload: Workload) -> str:
        """Why no request of ``workload`` can be served, in words; empty where one can."""
        shortest = min((one.input_tokens + one.output_tokens for one in workload.requests), default=0)
        if not self.never_fits(shortest):
            return ""
        bounds = [("the longest sequence is", self.slot_tokens), ("the KV cache holds", self.kv_tokens)]
        words, most = min(((words, most) for words, most in bounds if most is not None), key=lambda bound: bound[1])
        return f"no request fits: the shortest prompt and answer are {shortest:,} tokens together, and {words} {most:,}"


def limits_of(config: EngineConfig, kv_tokens: int | None = None, model: ModelSpec | None = None) -> Limits:
    """The limits that a config's knobs set, with each engine's own defaults for those left out.

    ``kv_tokens``: what the KV cache holds, by the ledger; llama.cpp divides ``n_ctx`` by its slots instead. ``model``:
    no sequence becomes longer than its context, where the engine refuses such. Raises RequestError for an engine whose
    scheduler is not modelled.
    """
    limits = _limits_of(config, kv_tokens)
    longest = 0 if model is None or config.engine not in REFUSE_LONG else model.context_tokens
    if longest and limits.slot_tokens is None and config.engine == "llamacpp":
        longest //= limits.slots
    bounds = [tokens for tokens in (limits.slot_tokens, longest) if tokens]
    return msgspec.structs.replace(limits, slot_tokens=min(bounds, default=None))


def _limits_of(config: EngineConfig, kv_tokens: int | None) -> Limits:
    knobs = config.knobs
    if config.engine == "llamacpp":
        slots = max(1, int(knobs.get("n_parallel", 1)))
        context = int(knobs.get("n_ctx", 0)) or None
        batching: Batching = "continuous" if knobs.get("cont_batching", True) is not False else "static"
        return Limits(
            slots=slots,
            batch_tokens=int(knobs.get("n_batch", 2048)),
            batching=batching,
            prefix_cache=knobs.get("cache_prompt", True) is not False,
            split_rows=slots > 1 and knobs.get("kv_unified", False) is not True,
            slot_tokens=None if context is None else context // slots,
        )
    if config.engine == "vllm":
        return Limits(
            slots=int(knobs.get("max_num_seqs", VLLM_SEQUENCES)),
            batch_tokens=int(knobs.get("max_num_batched_tokens", VLLM_BATCHED_TOKENS)),
            chunked=knobs.get("enable_chunked_prefill", True) is not False,
            kv_tokens=kv_tokens,
            block_tokens=int(knobs.get("block_size", VLLM_BLOCK)),
            prefix_cache=knobs.get("enable_prefix_caching", True) is not False,
            slot_tokens=int(knobs.get("max_model_len", 0)) or None,
            ahead=knobs.get("async_scheduling", True) is not False,
        )
    if config.engine == "fake":
        return Limits(
            slots=int(knobs.get("slots", 4)),
            batch_tokens=1 << 20,
            prompt_tokens=int(knobs.get("chunk_tokens", 512)),
            batching="static" if knobs.get("static", False) is True else "continuous",
            kv_tokens=int(knobs.get("kv_tokens", 0)) or None,
            slot_tokens=int(knobs.get("context", 0)) or None,
        )
    if config.engine in ("transformers", "openvino"):
        return _hosted_limits(config)
    if config.engine in _SERVERS:
        return _server_limits(config, kv_tokens)
    raise RequestError(
        f"the scheduler of engine {config.engine!r} is not modelled", hint="simulate knows: " + ", ".join(MODELLED)
    )


def _hosted_limits(config: EngineConfig) -> Limits:
    """The in-process engines behind our own worker; a static batch is prefilled and decoded as a whole."""
    knobs = config.knobs
    if config.engine == "openvino":
        return Limits(
            slots=int(knobs.get("max_num_seqs", 1)),
            batch_tokens=int(knobs.get("max_num_batched_tokens", 256)),
            chunked=knobs.get("dynamic_split_fuse", True) is not False,
        )
    limit = int(knobs.get("max_length", 0)) or None
    batching = knobs.get("batching", "none")
    if batching == "continuous":
        return Limits(
            slots=int(knobs.get("max_requests_per_batch", 0)) or UNBOUND,
            batch_tokens=int(knobs.get("max_batch_tokens", 0)) or CONTINUOUS_TOKENS,
            slot_tokens=limit,
        )
    slots = int(knobs.get("batch_size", 1)) if batching == "static" else 1
    return Limits(slots=slots, batch_tokens=UNBOUND, batching="static", slot_tokens=limit)


def _server_limits(config: EngineConfig, kv_tokens: int | None) -> Limits:
    """SGLang, TGI, TensorRT-LLM and MLX. The first prefills what waits before it decodes on (get_next_batch_to_run in
    its scheduler, no mixed chunks by default). TGI and MLX prefill in steps of their own too; here their prompts share
    a step with decoding, which spreads the same work and hides how long a stream stands still meanwhile.
    """
    knobs = config.knobs

    def whole(name: str, default: int) -> int:
        return max(0, int(knobs.get(name, 0))) or default

    if config.engine == "sglang":
        given = whole("max_total_tokens", 0)
        return Limits(
            slots=whole("max_running_requests", 4096),
            batch_tokens=UNBOUND,
            prompt_tokens=whole("chunked_prefill_size", whole("max_prefill_tokens", 16384)),
            kv_tokens=min(given or UNBOUND, kv_tokens or UNBOUND) if given or kv_tokens else None,
            slot_tokens=whole("context_length", 0) or None,
            prefix_cache=knobs.get("disable_radix_cache") is not True,
            prompts_first=knobs.get("enable_mixed_chunk") is not True,
        )
    if config.engine == "tgi":
        return Limits(
            slots=min(whole("max_concurrent_requests", 128), whole("max_batch_size", UNBOUND)),
            batch_tokens=UNBOUND,
            prompt_tokens=whole("max_batch_prefill_tokens", 4096),
            kv_tokens=whole("max_batch_total_tokens", 0) or kv_tokens,
            slot_tokens=whole("max_total_tokens", 0) or None,
            prefix_cache=knobs.get("PREFIX_CACHING", "auto") != "false",
        )
    if config.engine == "mlx":
        return Limits(
            slots=whole("decode_concurrency", 32),
            batch_tokens=UNBOUND,
            prompt_tokens=whole("prefill_step_size", 2048) * whole("prompt_concurrency", 8),
        )
    return Limits(
        slots=whole("max_batch_size", 2048),
        batch_tokens=whole("max_num_tokens", 8192),
        chunked=knobs.get("enable_chunked_prefill") is True,
        kv_tokens=kv_tokens,
        block_tokens=whole("tokens_per_block", 32),
        slot_tokens=whole("max_seq_len", 0) or None,
        prefix_cache=knobs.get("enable_block_reuse", True) is not False,
    )
