"""The catalogue's figures, cards named by a driver, and devices described in a file."""

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from powerband.probes.device import device_catalogue, match_card, read_device
from powerband.records.errors import RequestError
from powerband.records.units import GIB

CATALOGUE = device_catalogue()


def test_the_catalogue_covers_the_field() -> None:
    assert len(CATALOGUE) >= 45
    wanted = {
        "t4", "a100-80gb", "h100-80gb", "h200", "b200", "gb200", "h20", "rtx3090", "rtx4090", "rtx5090", "l4", "l40s",
        "a10", "a40", "mi250", "mi300x", "mi355x", "gaudi3", "ascend910b", "m2-ultra-192gb",
    }  # fmt: skip
    assert wanted <= set(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_figures_are_plausible_and_name_their_source(name: str) -> None:
    device = CATALOGUE[name]
    assert 4 * GIB <= device.memory_bytes <= 512 * GIB
    assert 1e11 <= device.bandwidth_bytes_per_s <= 1e13
    assert device.flops_per_s
    assert all(1e12 <= rate <= 2e16 for rate in device.flops_per_s.values())
    wide, narrow = device.flops_per_s.get("f16", 0), device.flops_per_s.get("fp8", 0)
    assert not narrow or narrow >= wide
    assert "; memory: " in device.source
    assert len(device.source) > 30


def test_no_two_cards_answer_to_one_name() -> None:
    raw = tomllib.loads(files("powerband.probes").joinpath("data", "devices.toml").read_text(encoding="utf-8"))
    names = list(raw) + [alias for entry in raw.values() for alias in entry.get("aliases", ())]
    assert len(names) == len(set(names))
    assert read_device("A100").name == "a100-80gb"


@pytest.mark.parametrize(
    ("name", "bandwidth", "bf16"),
    [
        ("h200", 4.8e12, 989.5e12),
        ("a100-80gb", 2.039e12, 312e12),
        ("rtx4090", 1.008e12, 165.2e12),
        ("mi300x", 5.3e12, 1307.4e12),
    ],
)
def test_published_peaks(name: str, bandwidth: float, bf16: float) -> None:
    device = read_device(name)
    assert device.bandwidth_bytes_per_s == pytest.approx(bandwidth)
    assert device.flops_per_s["bf16"] == pytest.approx(bf16)


@pytest.mark.parametrize(
    ("title", "mebibytes", "name"),
    [
        ("NVIDIA H200", 143156, "h200"),
        ("NVIDIA GeForce RTX 4090", 24210, "rtx4090"),
        ("NVIDIA A100-SXM4-80GB", 81050, "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", 40330, "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", 81050, "a100-80gb-pcie"),
        ("NVIDIA H100 PCIe", 81080, "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", 81080, "h100-80gb"),
        ("NVIDIA H100 NVL", 95200, "h100-nvl"),
        ("Tesla T4", 14910, "t4"),
        ("Tesla V100-SXM2-32GB", 32490, "v100-32gb"),
        ("NVIDIA L4", 22600, "l4"),
        ("NVIDIA L40S", 45460, "l40s"),
        ("NVIDIA A10G", 22600, "a10g"),
        ("NVIDIA GeForce RTX 3080 Ti", 12110, "rtx3080ti"),
        ("NVIDIA GeForce RTX 4080 SUPER", 16080, "rtx4080super"),
        ("NVIDIA RTX A6000", 48640, "rtxa6000"),
        ("NVIDIA RTX 6000 Ada Generation", 48540, "rtx6000ada"),
    ],
)
def test_a_drivers_title_finds_its_card_and_keeps_its_memory(title: str, mebibytes: int, name: str) -> None:
    found = match_card(title, mebibytes << 20, "9.0")
    assert found.name == name
    assert found.memory_bytes == mebibytes << 20
    assert title in found.source


def test_a_card_nobody_listed_is_refused_with_a_way_out() -> None:
    with pytest.raises(RequestError, match="GTX 1050") as caught:
        match_card("NVIDIA GeForce GTX 1050", 2 << 30, "6.1")
    assert "TOML" in caught.value.hint


def test_the_host_reports_its_memory_and_assumes_the_rest() -> None:
    host = read_device("cpu")
    assert host.kind == "cpu"
    assert host.cores >= 1
    assert host.memory_bytes > 1 << 28
    assert "assumed" in host.source


def test_a_device_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(
        'name = "mine"\nvendor = "NVIDIA"\nkind = "gpu"\nmemory_bytes = 1000000000\nbandwidth_bytes_per_s = 1e11\n'
        'source = "me"\n[flops_per_s]\nbf16 = 1e13\n'
    )
    assert read_device(str(path)).name == "mine"
    path.write_text('name = "mine"\nmemory_gib = 3\n')
    with pytest.raises(RequestError, match="cannot read device file") as caught:
        read_device(str(path))
    assert "memory_bytes" in caught.value.hint


def test_an_unknown_name_lists_near_ones() -> None:
    with pytest.raises(RequestError, match="unknown device 'h20o'") as caught:
        read_device("h20o")
    assert "h200" in caught.value.hint


def test_the_page_of_devices_is_the_catalogue() -> None:
    """docs/reference/devices.md is written from the catalogue; every card stands in it with its figures."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "devices.md").read_text(encoding="utf-8")
    for name, spec in CATALOGUE.items():
        row = f"| {name} | {spec.memory_bytes / GIB:.2f} | {spec.bandwidth_bytes_per_s / 1e12:.4g} |"
        assert row in page, f"run bench/account_tables.py devices: {name} differs"
        assert spec.source in page
