"""What the NVIDIA driver says of its cards: use, memory, power, clocks, throttling, PCIe and NVLink traffic."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from powerband.records.errors import MachineError
from powerband.records.sample import DeviceSample
from powerband.records.value import Measured, Missing

_DRIVER = Path("/proc/driver/nvidia/version")
_NOT_GIVEN = "the driver does not give it for this card"
# The driver measures PCIe traffic over 20 ms for each direction: with many cards a reading would outlast its interval.
_MOST_PCIE_CARDS = 4
_PCIE_SLOW = Missing(missing=f"not read with more than {_MOST_PCIE_CARDS} cards: each reading takes 40 ms")
# Bits of nvmlClocksEventReasons (nvml.h); 0x1 is idle and 0x2 a setting: neither is throttling.
_THROTTLE = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost with a slower card",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
# nvml.h: NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX in KiB, with this scope for the sum over all links.
_NVLINK_TX, _NVLINK_RX, _ALL_LINKS = 138, 139, 0xFFFFFFFF
_CLOCK_SM, _CLOCK_MEMORY, _SENSOR_GPU, _PCIE_TX, _PCIE_RX = 1, 2, 0, 0, 1


@dataclass(frozen=True, slots=True)
class _Card:
    index: int
    name: str
    handle: Any


class NvmlProbe:
    """Reads the cards of ``indexes``, or those that CUDA_VISIBLE_DEVICES leaves visible where None.

    Where there is no driver, or the ``nvidia`` extra is not installed, ``missing`` says so and samples are empty.
    Raises MachineError for an index that the driver does not have.
    """

    def __init__(self, indexes: Sequence[int] | None = None) -> None:
        self.missing: Missing | None = None
        self._nvml: Any = None
        self._cards: list[_Card] = []
        try:
            import pynvml
        except ImportError:
            there = "a driver is here, but not the package that reads it: pip install 'powerband[nvidia]'"
            self.missing = Missing(missing=there if _DRIVER.exists() else "no NVIDIA driver")
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.missing = Missing(missing=f"no NVIDIA driver answers ({error})")
            return
        self._nvml = pynvml
        self._open(indexes)

    def sample(self, t_ns: int) -> tuple[DeviceSample, ...]:
        """One reading of every card, stamped ``t_ns``; what the driver refuses is Missing, never an exception."""
        return tuple(self._read(card, t_ns) for card in self._cards)

    def close(self) -> None:
        """Let the driver go; safe to call twice."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
        self._nvml, self._cards = None, []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, indexes: Sequence[int] | None) -> None:
        nvml = self._nvml
        try:
            count = int(nvml.nvmlDeviceGetCount())
            uuids = {_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(n))): n for n in range(count)}
            chosen = visible_indexes(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids) if indexes is None else indexes
            if wrong := [index for index in chosen if not 0 <= index < count]:
                self.close()
                raise MachineError(f"no card {wrong[0]}", hint=f"the driver has {count}, numbered from 0")
            for index in chosen:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                self._cards.append(_Card(index, _text(nvml.nvmlDeviceGetName(handle)), handle))
        except nvml.NVMLError as error:
            self.close()
            self.missing = Missing(missing=f"the NVIDIA driver does not answer ({error})")

    def _read(self, card: _Card, t_ns: int) -> DeviceSample:
        nvml, handle = self._nvml, card.handle
        use = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        slow = len(self._cards) > _MOST_PCIE_CARDS
        return DeviceSample(
            t_ns=t_ns,
            index=card.index,
            name=card.name,
            busy_ratio=_scaled(use, lambda seen: seen.gpu, 0.01),
            memory_busy_ratio=_scaled(use, lambda seen: seen.memory, 0.01),
            memory_used_bytes=_scaled(memory, lambda seen: seen.used),
            memory_bytes=_scaled(memory, lambda seen: seen.total),
            power_w=self._number(lambda: nvml.nvmlDeviceGetPowerUsage(handle), 1e-3),
            power_limit_w=self._number(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle), 1e-3),
            temperature_c=self._number(lambda: nvml.nvmlDeviceGetTemperature(handle, _SENSOR_GPU)),
            sm_clock_hz=self._number(lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_SM), 1e6),
            max_sm_clock_hz=self._number(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, _CLOCK_SM), 1e6),
            memory_clock_hz=self._number(lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_MEMORY), 1e6),
            throttle=self._throttle(handle),
            pcie_rx_bytes_per_s=_PCIE_SLOW if slow else self._pcie(handle, _PCIE_RX),
            pcie_tx_bytes_per_s=_PCIE_SLOW if slow else self._pcie(handle, _PCIE_TX),
            nvlink_rx_bytes_total=self._nvlink(handle, _NVLINK_RX),
            nvlink_tx_bytes_total=self._nvlink(handle, _NVLINK_TX),
        )

    def _ask(self, read: Callable[[], Any]) -> Any:
        """What the driver answers, or Missing with its words; a binding too old for a call lacks the function."""
        try:
            return read()
        except self._nvml.NVMLError as error:
            return Missing(missing=f"{_NOT_GIVEN} ({error})")
        except (AttributeError, TypeError):
            return Missing(missing="the installed nvidia-ml-py does not know it")

    def _number(self, read: Callable[[], Any], factor: float = 1.0) -> Measured:
        return _scaled(self._ask(read), lambda seen: seen, factor)

    def _pcie(self, handle: Any, counter: int) -> Measured:
        return self._number(lambda: self._nvml.nvmlDeviceGetPcieThroughput(handle, counter), 1024)

    def _throttle(self, handle: Any) -> tuple[str, ...] | Missing:
        nvml = self._nvml
        # Renamed in driver 535; both names give the same bits.
        read = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        read = read or getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        if read is None:
            return Missing(missing="the installed nvidia-ml-py does not know it")
        bits = self._ask(lambda: read(handle))
        return bits if isinstance(bits, Missing) else tuple(why for bit, why in _THROTTLE.items() if bits & bit)

    def _nvlink(self, handle: Any, field: int) -> Measured:
        seen = self._ask(lambda: self._nvml.nvmlDeviceGetFieldValues(handle, [(field, _ALL_LINKS)])[0])
        if isinstance(seen, Missing):
            return seen
        return Missing(missing="the card has no NVLink in use") if seen.nvmlReturn else float(seen.value.ullVal) * 1024


def visible_indexes(variable: str | None, uuids: dict[str, int]) -> list[int]:
    """The cards that CUDA_VISIBLE_DEVICES names, by number or UUID; all where unset. As CUDA, stop at a wrong one."""
    if variable is None:
        return list(uuids.values())
    chosen: list[int] = []
    for word in variable.split(","):
        name = word.strip()
        if name.isdigit() and int(name) < len(uuids):
            chosen.append(int(name))
            continue
        found = [index for uuid, index in uuids.items() if name and uuid.startswith(name)]
        if len(found) != 1:
            break
        chosen.append(found[0])
    return chosen


def _scaled(seen: Any, read: Callable[[Any], Any], factor: float = 1.0) -> Measured:
    return seen if isinstance(seen, Missing) else float(read(seen)) * factor


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
