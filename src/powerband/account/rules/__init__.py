"""Each engine's own rules for memory: what it allocates ahead, how it rounds, what is inside its budget."""

from collections.abc import Callable

import msgspec

from powerband.account.plan import Plan, Request
from powerband.account.rules.llamacpp import plan_llamacpp
from powerband.account.rules.openvino import plan_openvino
from powerband.account.rules.others import plan_sglang, plan_tensorrt_llm, plan_tgi, plan_transformers
from powerband.account.rules.vllm import plan_vllm
from powerband.records.errors import unknown_name

RULES: dict[str, Callable[[Request], Plan]] = {
    "llamacpp": plan_llamacpp,
    "openvino": plan_openvino,
    "sglang": plan_sglang,
    "tensorrt-llm": plan_tensorrt_llm,
    "tgi": plan_tgi,
    "transformers": plan_transformers,
    "vllm": plan_vllm,
}


def plan_memory(request: Request) -> Plan:
    """What the engine would do with the devices; raises RequestError for an engine without rules here."""
    engine = request.config.engine
    if engine not in RULES:
        raise unknown_name("engine for the memory ledger", engine, RULES)
    plan = RULES[engine](request)
    copies = request.config.knobs.get("enable_dp_attention") is True  # each card has all heads of some sequences
    return plan if copies else msgspec.structs.replace(plan, refusal=request.model.refuses_split(plan.pool.tp))
