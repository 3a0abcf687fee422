"""The driver's readings, from a stand-in that answers as nvidia-ml-py does."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from powerband.probes.nvml import NvmlProbe, visible_indexes
from powerband.records.errors import MachineError
from powerband.records.value import Missing


class NVMLError(Exception):
    pass


def refuse(*_: Any) -> Any:
    raise NVMLError("Not Supported")


def driver(cards: int = 2, **other: Any) -> Any:
    """A module with the functions of nvidia-ml-py 12.535, each with the units that nvml.h gives."""
    fields = {138: 3, 139: 5}  # KiB

    def field_values(handle: Any, wanted: list[tuple[int, int]]) -> list[Any]:
        assert wanted[0][1] == 0xFFFFFFFF
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=fields[wanted[0][0]]))]

    module: Any = ModuleType("pynvml")
    answers = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: cards,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}abc".encode(),
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=37, memory=12),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=10, total=100, free=90),
        "nvmlDeviceGetPowerUsage": lambda handle: 250_000,  # mW
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 41,
        "nvmlDeviceGetClockInfo": lambda handle, clock: 1980 if clock == 1 else 3201,  # MHz
        "nvmlDeviceGetMaxClockInfo": lambda handle, clock: 1980,
        "nvmlDeviceGetPcieThroughput": lambda handle, way: 2 if way == 0 else 4,  # KB/s
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x1 | 0x4 | 0x40,
        "nvmlDeviceGetFieldValues": field_values,
    } | other
    for name, answer in answers.items():
        setattr(module, name, answer)
    return module


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_units_are_turned_into_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    with NvmlProbe() as probe:
        first, second = probe.sample(5)
    assert (first.t_ns, first.index, second.index, first.name) == (5, 0, 1, "NVIDIA H200")
    assert (first.busy_ratio, first.memory_busy_ratio) == (0.37, 0.12)
    assert (first.memory_used_bytes, first.memory_bytes) == (10, 100)
    assert (first.power_w, first.power_limit_w, first.temperature_c) == (250, 700, 41)
    assert (first.sm_clock_hz, first.memory_clock_hz) == (1.98e9, 3.201e9)
    assert first.throttle == ("software power cap", "hardware thermal slowdown")
    assert (first.pcie_tx_bytes_per_s, first.pcie_rx_bytes_per_s) == (2048, 4096)
    assert (first.nvlink_tx_bytes_total, first.nvlink_rx_bytes_total) == (3072, 5120)


def test_what_the_driver_refuses_is_missing_and_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    module = driver(1, nvmlDeviceGetUtilizationRates=refuse, nvmlDeviceGetFieldValues=refuse)
    del module.nvmlDeviceGetPcieThroughput
    monkeypatch.setitem(sys.modules, "pynvml", module)
    (sample,) = NvmlProbe([0]).sample(0)
    assert isinstance(sample.busy_ratio, Missing)
    assert "Not Supported" in sample.busy_ratio.missing
    assert isinstance(sample.nvlink_rx_bytes_total, Missing)
    assert isinstance(sample.pcie_rx_bytes_per_s, Missing)
    assert sample.power_w == 250


def test_older_drivers_name_throttling_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    module = driver(1, nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x8)
    del module.nvmlDeviceGetCurrentClocksEventReasons
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert NvmlProbe().sample(0)[0].throttle == ("hardware slowdown",)


def test_pcie_is_not_read_of_many_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(8))
    assert isinstance(NvmlProbe().sample(0)[7].pcie_rx_bytes_per_s, Missing)
    assert NvmlProbe([1, 3]).sample(0)[1].index == 3


def test_no_driver_is_no_sample_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(nvmlInit=refuse))
    probe = NvmlProbe()
    assert probe.sample(0) == ()
    assert probe.missing is not None
    assert "Not Supported" in probe.missing.missing
    probe.close()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvmlProbe().missing is not None


def test_a_driver_that_dies_later_gives_missing_values(monkeypatch: pytest.MonkeyPatch) -> None:
    module = driver(1)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    probe = NvmlProbe()
    for name in vars(module):
        if name.startswith("nvmlDeviceGet"):
            monkeypatch.setattr(module, name, refuse)
    (sample,) = probe.sample(0)
    assert isinstance(sample.power_w, Missing)
    assert isinstance(sample.throttle, Missing)


def test_a_wrong_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(2))
    with pytest.raises(MachineError, match="no card 2"):
        NvmlProbe([0, 2])


@pytest.mark.parametrize(
    ("variable", "indexes"),
    [(None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("GPU-1a", [1]), ("", []), ("0,7,1", [0]), ("GPU-", [])],
)
def test_hidden_cards_are_not_watched(variable: str | None, indexes: list[int]) -> None:
    assert visible_indexes(variable, {"GPU-0abc": 0, "GPU-1abc": 1}) == indexes
