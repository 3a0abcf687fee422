"""The hardware a model runs on: figures with their sources."""

from powerband.records.value import Record


class DeviceSpec(Record):
    """One accelerator, or the host itself (``kind="cpu"``).

    ``memory_bytes`` is what the driver reports, not the box; ``flops_per_s`` is dense, per dtype (``bf16``, ``fp8``,
    ``int8`` ...); ``link_bytes_per_s`` is per direction to a peer in the same node (0: PCIe only).
    """

    name: str
    vendor: str
    kind: str  # gpu | cpu | npu
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: dict[str, float]
    source: str
    link_bytes_per_s: float = 0.0
    pcie_bytes_per_s: float = 0.0
    compute_capability: str = ""
    unified_memory: bool = False
    cores: int = 0
