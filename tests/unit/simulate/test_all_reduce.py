"""Time of an all-reduce: by hand, and against published measurements."""

import pytest

from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.simulate.all_reduce import all_reduce_s, link_cost, ring_bytes, step_collectives

# us by KiB on 8 Hopper cards, the faster of NCCL and multimem kernels (vllm-project/vllm#42324).
PUBLISHED = {512: 11, 1024: 14, 2048: 18, 4096: 27, 8192: 46, 16384: 87, 32768: 165, 65536: 316}


def card(link_bytes_per_s: float = 0.0, pcie_bytes_per_s: float = 0.0) -> DeviceSpec:
    return DeviceSpec(
        name="x", vendor="x", kind="gpu", memory_bytes=1, bandwidth_bytes_per_s=1.0, flops_per_s={}, source="test",
        link_bytes_per_s=link_bytes_per_s, pcie_bytes_per_s=pcie_bytes_per_s,
    )  # fmt: skip


def test_by_hand() -> None:
    cost = link_cost(card(link_bytes_per_s=400e9))
    assert (cost.name, cost.latency_s, cost.bytes_per_s) == ("NVLink", 9.5e-6, 300e9)
    # 4 ranks send 2 x 3/4 of 1 MB: 1.5 MB at 300 GB/s are 5 us.
    assert ring_bytes(1e6, 4) == 1.5e6
    assert all_reduce_s(1e6, 4, cost) == pytest.approx(14.5e-6)
    assert all_reduce_s(1e6, 1, cost) == 0.0


def test_a_card_without_nvlink_talks_over_pcie_and_slower() -> None:
    cost = link_cost(card(pcie_bytes_per_s=32e9))
    assert cost.name == "PCIe"
    assert cost.bytes_per_s == pytest.approx(0.35 * 32e9)
    assert link_cost(card()) == cost


@pytest.mark.parametrize("kib", sorted(PUBLISHED))
def test_against_published_times(kib: int) -> None:
    cost = link_cost(card(link_bytes_per_s=450e9))
    assert all_reduce_s(kib * 1024, 8, cost) == pytest.approx(PUBLISHED[kib] * 1e-6, rel=0.25)


def test_a_step_pays_two_a_layer(llama_8b: ModelSpec, h100: DeviceSpec) -> None:
    each_step, each_token = step_collectives(llama_8b, h100, 2)
    assert each_step == pytest.approx(64 * 9.5e-6)
    # Two ranks send each message once: 64 messages of 4096 values x 2 bytes, at 0.75 x 450 GB/s.
    assert each_token == pytest.approx(64 * 4096 * 2 / 337.5e9)
    assert step_collectives(llama_8b, h100, 1) == (0.0, 0.0)
