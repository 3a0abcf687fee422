"""Time of one all-reduce among the cards of a node: a latency and a bandwidth term, by the link between them.

A layer under tensor parallelism ends its attention and its MLP with one each, of ``hidden`` 16-bit values a token.
"""

from typing import Literal

from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.value import Record

PER_LAYER = 2
VALUE_BYTES = 2
# NVLink 4, H100 and H200. Small messages go through the engines' own one-shot kernels: 9.5, 9.1 and 10.1 us at TP 2, 4
# and 8 (sgl-project/sglang#2904, vLLM's kernel). Large ones through NCCL, whose bus bandwidth is 0.54 of the link's at
# 16 MiB, 0.82 at 64 MiB and 0.92 at 128 MiB on 8 cards (stas00/ml-engineering, network/benchmarks, NCCL 2.30).
NVLINK_LATENCY_S, NVLINK_SHARE = 9.5e-6, 0.75
# PCIe: no one-shot kernels beyond two cards, and often no peer access, so that data goes through the host's memory.
# Assumed; a run with TP n and one with TP 1 replace it.
PCIE_LATENCY_S, PCIE_SHARE = 30e-6, 0.35
UNKNOWN_PCIE_BYTES_PER_S = 32e9  # PCIe 4 x16, where a device's description has neither link


class LinkCost(Record):
    """``latency_s`` of a message of no size, and the rate at which a ring moves what lies beyond it."""

    name: Literal["NVLink", "PCIe"]
    latency_s: float
    bytes_per_s: float


def link_cost(device: DeviceSpec) -> LinkCost:
    """The direct link between cards where the device has one, else PCIe."""
    if device.link_bytes_per_s:
        return LinkCost(name="NVLink", latency_s=NVLINK_LATENCY_S, bytes_per_s=NVLINK_SHARE * device.link_bytes_per_s)
    return LinkCost(
        name="PCIe",
        latency_s=PCIE_LATENCY_S,
        bytes_per_s=PCIE_SHARE * (device.pcie_bytes_per_s or UNKNOWN_PCIE_BYTES_PER_S),
    )


def ring_bytes(message_bytes: float, ranks: int) -> float:
    """What each rank of a ring sends: every part of the message twice round, but for its own."""
    return 2 * (ranks - 1) / ranks * message_bytes


def all_reduce_s(message_bytes: float, ranks: int, cost: LinkCost) -> float:
    """Seconds of one all-reduce of ``message_bytes`` on each of ``ranks`` cards; 0 for one."""
    if ranks == 1:
        return 0.0
    return cost.latency_s + ring_bytes(message_bytes, ranks) / cost.bytes_per_s


def message_bytes(model: ModelSpec, tokens: float) -> float:
    """What one all-reduce of a step of ``tokens`` adds up."""
    return tokens * model.hidden * VALUE_BYTES


def step_collectives(model: ModelSpec, device: DeviceSpec, ranks: int) -> tuple[float, float]:
    """Seconds of all of a step's all-reduces: what every step pays, and what each token adds."""
    if ranks == 1:
        return 0.0, 0.0
    cost, count = link_cost(device), PER_LAYER * model.n_layers
    return count * cost.latency_s, count * ring_bytes(message_bytes(model, 1), ranks) / cost.bytes_per_s
