"""What an engine would do with a device: the part every engine's rules hand to the ledger."""

from powerband.account.estimate import Estimate
from powerband.records.value import Record


class Pool(Record):
    """The KV cache an engine allocates on one rank."""

    bytes: Estimate
    tokens: int  # as the engine would report them
    max_concurrency: float  # sequences of max_model_len
    bytes_per_token: float
    dtype_bytes: float
    tp: int
    block_tokens: int = 1
    fixed: bool = False  # sized by a setting rather than by what memory is left


class Plan(Record):
    """Memory by purpose on one rank. ``shortage`` says what does not fit, empty where all does."""

    memory_bytes: int
    ranks: int
    weights: Estimate
    activation: Estimate
    non_torch: Estimate
    cuda_graphs: Estimate
    pool: Pool
    max_model_len: int
    max_num_seqs: int
    shortage: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def unused_bytes(self) -> int:
        """What is left; below 0 where the sum exceeds the device."""
        used = (self.weights, self.activation, self.non_torch, self.cuda_graphs, self.pool.bytes)
        return self.memory_bytes - sum(part.bytes for part in used)
