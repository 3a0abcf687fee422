"""Reading a device: by catalogue name, from the driver (``auto``), the host itself (``cpu``), or a TOML file."""

import os
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from powerband.records.errors import MachineError, RequestError, in_words, unknown_name
from powerband.records.hardware import DeviceSpec
from powerband.records.units import GIB

# Sustained reads of one core on current server parts reach 10 to 14 GB/s, and a socket saturates near 200 GB/s;
# the figure is assumed, not measured: a run replaces it.
_CPU_CORE_BYTES_PER_S = 12e9
_CPU_SOCKET_BYTES_PER_S = 200e9
# Vector units: two fused multiply-adds a cycle over 8 (AVX2) or 16 (AVX-512) f32 values, at an assumed 2.5 GHz.
_CPU_HZ = 2.5e9


def read_device(name: str) -> DeviceSpec:
    """The device called ``name``. Raises RequestError for an unknown name, MachineError where the driver fails."""
    key = name.strip().lower()
    if key == "auto":
        return _read_driver() or _read_host()
    if key == "cpu":
        return _read_host()
    if key.endswith(".toml"):
        return _read_file(Path(name).expanduser())
    catalogue = device_catalogue()
    if key in catalogue:
        return catalogue[key]
    for spec in catalogue.values():
        if key in _aliases().get(spec.name, ()):
            return spec
    aliases = [alias for names in _aliases().values() for alias in names]
    raise unknown_name("device", name, [*catalogue, *aliases, "cpu", "auto"])


@cache
def device_catalogue() -> dict[str, DeviceSpec]:
    """Every card of the catalogue by name."""
    return {name: _spec(name, fields) for name, fields in _raw().items()}


@cache
def _raw() -> dict[str, dict[str, Any]]:
    text = files("powerband.probes").joinpath("data", "devices.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _aliases() -> dict[str, tuple[str, ...]]:
    return {name: tuple(fields.get("aliases", ())) for name, fields in _raw().items()}


def _spec(name: str, fields: Mapping[str, Any]) -> DeviceSpec:
    return DeviceSpec(
        name=name,
        vendor=fields["vendor"],
        kind=fields.get("kind", "gpu"),
        memory_bytes=round(fields["memory_gib"] * GIB),
        bandwidth_bytes_per_s=fields["bandwidth_tb_per_s"] * 1e12,
        flops_per_s={dtype: tera * 1e12 for dtype, tera in fields["tflops"].items()},
        source=f"{fields['source']}; memory: {fields['memory_source']}",
        link_bytes_per_s=fields.get("link_gb_per_s", 0) * 1e9,
        pcie_bytes_per_s=fields.get("pcie_gb_per_s", 0) * 1e9,
        compute_capability=fields.get("compute_capability", ""),
        unified_memory=fields.get("unified_memory", False),
    )


def _read_file(path: Path) -> DeviceSpec:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=DeviceSpec)
    except FileNotFoundError:
        raise RequestError(
            f"no device file {str(path)!r}", hint="name a catalogue device, auto, cpu or a TOML file"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        fields = ", ".join(DeviceSpec.__struct_fields__)
        raise RequestError(f"cannot read device file {path}: {in_words(error)}", hint=f"fields: {fields}") from None


def _read_driver() -> DeviceSpec | None:
    """The first NVIDIA card as the driver describes it; None where there is no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        title = pynvml.nvmlDeviceGetName(handle)
        usable = _usable_bytes(pynvml, handle)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError as error:
        raise MachineError(f"the NVIDIA driver does not answer: {error}", hint="does nvidia-smi work?") from None
    finally:
        pynvml.nvmlShutdown()
    return match_card(title if isinstance(title, str) else title.decode(), usable, f"{major}.{minor}")


def _usable_bytes(pynvml: Any, handle: Any) -> int:
    """Total less what the driver reserves: what CUDA offers a program. Drivers before 510 do not name the reserve."""
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError, TypeError, AttributeError):
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    return int(info.total) - int(info.reserved)


def match_card(title: str, usable_bytes: int, capability: str) -> DeviceSpec:
    """The catalogue card that the driver's ``title`` names, with the memory the driver offers.

    Raises RequestError for a card the catalogue does not have.
    """
    plain = "".join(title.lower().replace("nvidia", "").replace("geforce", "").replace("tesla", "").split())
    fits = [
        spec for spec in device_catalogue().values() if _stem(spec.name) in plain and _suffix_fits(spec.name, plain)
    ]
    if not fits:
        raise RequestError(
            f"the driver reports {title!r}, which is not in the catalogue",
            hint="describe it in a TOML file and pass --device FILE.toml",
        )
    longest = max(len(_stem(spec.name)) for spec in fits)
    named = [spec for spec in fits if len(_stem(spec.name)) == longest]
    nearest = min(named, key=lambda spec: (-len(_form_words(spec.name)), abs(spec.memory_bytes - usable_bytes)))
    return msgspec.structs.replace(
        nearest,
        memory_bytes=usable_bytes,
        compute_capability=capability,
        source=f"{nearest.source}; card and memory: {title}, as the driver reports",
    )


def _stem(name: str) -> str:
    return name.split("-")[0]


def _form_words(name: str) -> list[str]:
    """Form factors in a catalogue name, such as pcie; sizes are told apart by memory."""
    return [word for word in name.split("-")[1:] if not word.endswith("gb")]


def _suffix_fits(name: str, plain: str) -> bool:
    return all(word in plain for word in _form_words(name))


def _read_host() -> DeviceSpec:
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = int(psutil.virtual_memory().total)
    limit = _cgroup_limit()
    wide = "avx512f" in _cpu_flags()
    flops = cores * _CPU_HZ * 2 * 2 * (16 if wide else 8)
    return DeviceSpec(
        name="cpu",
        vendor="host",
        kind="cpu",
        memory_bytes=min(memory, limit) if limit else memory,
        bandwidth_bytes_per_s=min(cores * _CPU_CORE_BYTES_PER_S, _CPU_SOCKET_BYTES_PER_S),
        flops_per_s={"f32": flops, "f16": flops, "bf16": flops, "int8": 2 * flops},
        source=f"memory: the host's; bandwidth and FLOP/s assumed from {cores} cores, {'AVX-512' if wide else 'AVX2'}",
        unified_memory=True,
        cores=cores,
    )


def _cgroup_limit() -> int | None:
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(place).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def _cpu_flags() -> frozenset[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                return frozenset(line.split())
    except OSError:
        pass
    return frozenset()
