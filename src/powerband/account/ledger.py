"""The memory ledger: what an engine would do with a device, as lines that sum to its memory."""

from powerband.account.estimate import exact
from powerband.account.plan import Plan
from powerband.account.rules import plan_memory
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.hardware import DeviceSpec
from powerband.records.memory import Capacity, MemoryLedger
from powerband.records.model import ModelSpec
from powerband.records.workload import Workload


def compute_ledger(
    model: ModelSpec, device: DeviceSpec, config: EngineConfig, *, count: int = 1, traffic: Workload | None = None
) -> MemoryLedger:
    """The ledger of one rank, with what the KV cache can hold.

    Lines sum to ``device.memory_bytes``; ``unused`` is negative where the rest exceeds it. Raises RequestError for an
    engine without rules here and for knobs that cannot be read.
    """
    if count < 1:
        raise RequestError(f"count {count} is too small", hint="accepted: 1 or more devices")
    plan = plan_memory(model, device, config, count)
    return ledger_of(plan, model, device)


def ledger_of(plan: Plan, model: ModelSpec, device: DeviceSpec) -> MemoryLedger:
    unused = plan.unused_bytes
    why = "left over" if unused >= 0 else "more than the device holds"
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
            exact(unused, why).line("unused"),
        ),
        capacity=Capacity(
            kv_bytes_per_token=round(plan.pool.bytes_per_token),
            kv_tokens=plan.pool.tokens,
            max_concurrency=plan.pool.max_concurrency,
        ),
        fits=unused >= 0 and plan.pool.max_concurrency >= 1,
        assumed=(*model.assumed, *plan.assumed),
    )
