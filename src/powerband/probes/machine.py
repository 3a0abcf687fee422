"""What this machine has: cores, memory, CPU extensions, GPUs, disk, and who uses the CPU right now."""

import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

from powerband.probes.host import HostProbe
from powerband.probes.topology import Interconnect, read_interconnect
from powerband.records.value import Missing, Record

# Extensions that the engines' CPU kernels choose between (ggml, oneDNN, OpenVINO).
_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
    "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip


class Gpu(Record):
    name: str
    memory_bytes: int
    free_bytes: int
    driver: str


class BusyProcess(Record):
    pid: int
    name: str
    cores: float


class Machine(Record):
    """Facts as read, each Missing with its reason where the system does not tell."""

    system: str
    cpu: str
    cores: int  # that this process may run on
    physical_cores: int
    quota_cores: float | None  # of a container; None: no limit
    flags: tuple[str, ...]
    memory_bytes: int
    available_bytes: int
    gpus: tuple[Gpu, ...] | Missing
    disk_path: str
    disk_free_bytes: int | Missing
    other_cores: float
    steal_cores: float
    busiest: tuple[BusyProcess, ...]
    interconnect: Interconnect | Missing = Missing(missing="not read")


def read_machine(folder: Path, *, watch_s: float = 1.0) -> Machine:
    """Read everything; takes ``watch_s`` to see who uses the CPU. ``folder`` is where evidence will be kept."""
    probe, before = HostProbe(None), _cpu_seconds()
    began_s = time.monotonic()
    gpus = _read_gpus()
    time.sleep(max(0.0, watch_s - (time.monotonic() - began_s)))
    host, after = probe.sample(0), _cpu_seconds()
    memory = psutil.virtual_memory()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
        cpu=_cpu_name(),
        cores=host.cores,
        physical_cores=min(psutil.cpu_count(logical=False) or host.cores, host.cores),
        quota_cores=read_quota(Path("/sys/fs/cgroup")),
        flags=_cpu_flags(),
        memory_bytes=int(memory.total),
        available_bytes=int(memory.available),
        gpus=gpus,
        disk_path=str(folder),
        disk_free_bytes=_disk_free(folder),
        other_cores=host.other_cores,
        steal_cores=host.steal_cores,
        busiest=_busiest(before, after, host.interval_s),
        interconnect=read_interconnect(),
    )


def read_quota(cgroup: Path) -> float | None:
    """Cores that a control group allows: version 2 ``cpu.max``, version 1 ``cpu.cfs_quota_us``; None for no limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        allowed = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text())
        return allowed / int((cgroup / "cpu" / "cpu.cfs_period_us").read_text()) if allowed > 0 else None
    except (OSError, ValueError):
        return None


def _cpu_info() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _cpu_name() -> str:
    return _cpu_info().get("model name") or platform.processor() or platform.machine()


def _cpu_flags() -> tuple[str, ...]:
    info = _cpu_info()
    have = set((info.get("flags") or info.get("features") or "").split())
    return tuple(flag for flag in _FLAGS if flag in have)


def _disk_free(folder: Path) -> int | Missing:
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return int(psutil.disk_usage(str(place)).free)
    except OSError as error:
        return Missing(missing=f"{place}: {error.strerror}")


def _read_gpus() -> tuple[Gpu, ...] | Missing:
    try:
        import pynvml  # here and not above: it belongs to an extra
    except ImportError:
        if Path("/proc/driver/nvidia/version").exists():
            return Missing(missing="an NVIDIA driver is here, but not the package that reads it")
        return Missing(missing="no NVIDIA driver")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Missing(missing=f"no NVIDIA driver answers ({error})")
    try:
        return tuple(_read_gpu(pynvml, n) for n in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        return Missing(missing=f"the NVIDIA driver does not answer ({error})")
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(pynvml: Any, index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        driver=_text(pynvml.nvmlSystemGetDriverVersion()),
    )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _cpu_seconds() -> dict[tuple[int, float], tuple[str, float]]:
    """Seconds by process and its start time, of every process we may look at."""
    found = {}
    for process in psutil.process_iter(["pid", "name", "cpu_times", "create_time"]):
        times = process.info["cpu_times"]
        if times is not None:
            key = (process.info["pid"], process.info["create_time"])
            found[key] = (process.info["name"] or "?", times.user + times.system)
    return found


def _busiest(
    before: dict[tuple[int, float], tuple[str, float]],
    after: dict[tuple[int, float], tuple[str, float]],
    interval_s: float,
) -> tuple[BusyProcess, ...]:
    spent = [
        BusyProcess(pid=key[0], name=name, cores=(seconds - before.get(key, ("", 0.0))[1]) / interval_s)
        for key, (name, seconds) in after.items()
        if key[0] != os.getpid()
    ]
    return tuple(sorted((one for one in spent if one.cores >= 0.05), key=lambda one: -one.cores)[:3])
