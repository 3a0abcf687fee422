"""What an engine is asked, and what it would do with a device: what every engine's rules read and return."""

from powerband.account.estimate import Estimate, nothing
from powerband.records.config import EngineConfig
from powerband.records.hardware import DeviceSpec
from powerband.records.memory import EngineReport, Residual
from powerband.records.model import ModelSpec
from powerband.records.value import Record


class Request(Record):
    """A model, ``count`` devices of one kind and an engine's config; ``version`` "" means the newest known."""

    model: ModelSpec
    device: DeviceSpec
    config: EngineConfig
    count: int = 1
    version: str = ""
    residual: Residual | None = None


class Pool(Record):
    """The KV cache an engine allocates on one rank; ``left_bytes`` is what was left for it, which may be below 0."""

    bytes: Estimate
    tokens: int  # as the engine would report them
    max_concurrency: float  # sequences of max_model_len
    bytes_per_token: float
    dtype_bytes: float
    tp: int = 1
    pp: int = 1
    block_tokens: int = 1
    left_bytes: float = 0.0
    slots: bool = False  # memory is held per slot, used or not

    @classmethod
    def empty(cls, tp: int) -> "Pool":
        return cls(
            bytes=nothing("this model keeps no cache"),
            tokens=0,
            max_concurrency=0.0,
            bytes_per_token=0.0,
            dtype_bytes=0.0,
            tp=tp,
        )


class Plan(Record):
    """Memory by purpose on one rank."""

    memory_bytes: int
    ranks: int
    weights: Estimate
    activation: Estimate
    non_torch: Estimate
    cuda_graphs: Estimate
    pool: Pool
    max_model_len: int
    max_num_seqs: int
    reported: EngineReport
    engine_version: str = ""
    assumed: tuple[str, ...] = ()
    refusal: str = ""  # why the engine would not start, whatever the memory

    @property
    def unused_bytes(self) -> int:
        """What is left; below 0 where the sum exceeds the device."""
        used = (self.weights, self.activation, self.non_torch, self.cuda_graphs, self.pool.bytes)
        return self.memory_bytes - sum(part.bytes for part in used)

    @property
    def fits(self) -> bool:
        return not self.refusal and self.unused_bytes >= 0 and self.pool.max_concurrency >= 1
