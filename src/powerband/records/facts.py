"""What somebody states of a slow service: figures of an incident or of an A/B test, each of which may be missing."""

from powerband.records.value import Record


class Pair(Record):
    """The same work done two ways, in tokens/s, requests/s or any rate where more is better."""

    before: float
    after: float


class Facts(Record):
    """Stated facts; what was not stated is None. Rates: more is better.

    ``one_card``: before on one card, after on ``cards``. ``quantised``: before without, after with quantised weights.
    ``quantised_first_token``: the same as rates of first tokens (1 / TTFT). ``kernel``: the same weights and format,
    before with the kernel or kernel config in use, after with another. ``graphs``: before eager, after with graphs.
    ``smaller_prefill_budget``: rates of first tokens before and after fewer prompt tokens a step.
    ``sequential``: before one request at a time, after what the client called its load.
    ``speculation``: gain of speculative decoding at one sequence, and at many.
    """

    name: str = ""
    cards: int | None = None
    one_card: Pair | None = None
    quantised: Pair | None = None
    quantised_first_token: Pair | None = None
    weight_bits: int | None = None  # of weight-only quantisation
    input_tokens: int | None = None
    output_tokens: int | None = None
    kernel: Pair | None = None
    graphs: Pair | None = None
    launches_per_step: int | None = None
    launch_s: float | None = None
    step_s: float | None = None
    launch_share: float | None = None
    smaller_prefill_budget: Pair | None = None
    sequential: Pair | None = None
    client_concurrency: int | None = None
    gpu_busy_ratio: float | None = None
    sequences: int | None = None
    busiest_process_cores: float | None = None
    decodes: bool | None = None  # False: embeddings, scores
    first_token_grows_with_tokens: bool | None = None
    first_tokens_come_in_steps: bool | None = None
    speculation: Pair | None = None
    shared_prefix_tokens: int | None = None
    prefix_hit_ratio: float | None = None
    kv_tokens: int | None = None
    longest_prompt_tokens: int | None = None
    log: str | None = None
