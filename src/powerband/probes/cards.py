"""Who holds the memory of the NVIDIA cards that are visible here."""

import os
from typing import Any

import psutil

from powerband.probes.nvml import visible_indexes
from powerband.records.value import Record


class Holder(Record):
    """A process that holds memory of a card; ``bytes`` 0 where the driver does not say how much."""

    pid: int
    name: str
    bytes: int


class Card(Record):
    """One card as it is now; processes of other containers hold memory without being listed."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    holders: tuple[Holder, ...]


def read_cards(visible: str | None = None) -> tuple[Card, ...]:
    """The cards that ``visible`` names (CUDA_VISIBLE_DEVICES where None); none where no driver or binding is here."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        uuids = {_text(pynvml.nvmlDeviceGetUUID(handle)): index for index, handle in enumerate(handles)}
        named = visible_indexes(os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible, uuids)
        return tuple(_read(pynvml, index, handles[index]) for index in named)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any, index: int, handle: Any) -> Card:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        running = []
    return Card(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        holders=tuple(
            Holder(pid=int(one.pid), name=process_name(int(one.pid)), bytes=int(one.usedGpuMemory or 0))
            for one in running
        ),
    )


def process_name(pid: int) -> str:
    """What a process calls itself (vLLM's workers set a title), or "another container's" where it is not to be seen."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return "another container's"
    return " ".join(" ".join(words).split())[:80] or "nameless"  # a title is padded, a script has lines


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
