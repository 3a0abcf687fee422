"""The memory ledger: what an engine would do with a device, as lines that sum to its memory."""

from powerband.account.capacity import compute_capacity
from powerband.account.estimate import exact
from powerband.account.plan import Plan, Request
from powerband.account.remedies import suggest_remedies
from powerband.account.rules import plan_memory
from powerband.records.config import EngineConfig, check_count
from powerband.records.hardware import DeviceSpec
from powerband.records.memory import MemoryLedger, Residual
from powerband.records.model import ModelSpec
from powerband.records.units import format_bytes
from powerband.records.workload import Workload


def compute_ledger(
    model: ModelSpec,
    device: DeviceSpec,
    config: EngineConfig,
    *,
    count: int = 1,
    traffic: Workload | None = None,
    version: str = "",
    residual: Residual | None = None,
    remedies: bool = True,
) -> MemoryLedger:
    """The ledger of one rank, with what the KV cache can hold and what would help.

    Lines sum to ``device.memory_bytes``; ``unused`` is negative where the rest exceeds it. ``version`` is the engine's
    ("" the newest known), ``residual`` what an earlier start showed. Raises RequestError for an engine without rules
    here and for knobs that cannot be read.
    """
    check_count(count)
    request = Request(model=model, device=device, config=config, count=count, version=version, residual=residual)
    plan = plan_memory(request)
    return MemoryLedger(
        model=model.name,
        device=device.name,
        memory_bytes=plan.memory_bytes,
        ranks=plan.ranks,
        lines=(
            plan.weights.line("weights"),
            plan.activation.line("activation"),
            plan.non_torch.line("non_torch"),
            plan.cuda_graphs.line("cuda_graphs"),
            plan.pool.bytes.line("kv_cache"),
            exact(plan.unused_bytes, _unused_words(plan)).line("unused"),
        ),
        capacity=compute_capacity(request, plan, traffic),
        fits=plan.fits,
        remedies=tuple(suggest_remedies(request, plan, traffic)) if remedies else (),
        assumed=(*model.assumed, *plan.assumed),
        reported=plan.reported,
        shortage=shortage(plan),
        engine_version=plan.engine_version,
    )


def _unused_words(plan: Plan) -> str:
    return "left to others" if plan.unused_bytes >= 0 else "asked beyond what the device holds"


def shortage(plan: Plan) -> str:
    """What does not fit, in words; empty where all does."""
    if plan.refusal:
        return plan.refusal
    if plan.unused_bytes < 0:
        return f"{format_bytes(-plan.unused_bytes)} more than the device's {format_bytes(plan.memory_bytes)}"
    if plan.pool.max_concurrency < 1:
        longest = round(plan.pool.max_concurrency * plan.max_model_len)
        return f"the cache holds {longest:,} tokens, one sequence of {plan.max_model_len:,} does not fit"
    return ""
