"""Each engine's own rules for memory: what it allocates ahead, how it rounds, what is inside its budget."""

from collections.abc import Callable

from powerband.account.plan import Plan
from powerband.account.rules.llamacpp import plan_llamacpp
from powerband.account.rules.vllm import plan_vllm
from powerband.records.config import EngineConfig
from powerband.records.errors import unknown_name
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec

Rules = Callable[[ModelSpec, DeviceSpec, EngineConfig, int], Plan]

RULES: dict[str, Rules] = {"llamacpp": plan_llamacpp, "vllm": plan_vllm}


def plan_memory(model: ModelSpec, device: DeviceSpec, config: EngineConfig, count: int) -> Plan:
    """What ``config.engine`` would do with ``count`` devices; raises RequestError for an engine without rules here."""
    if config.engine not in RULES:
        raise unknown_name("engine for the memory ledger", config.engine, RULES)
    return RULES[config.engine](model, device, config, count)
