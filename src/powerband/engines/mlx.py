"""MLX's server on Apple silicon: ``mlx_lm.server`` of mlx-lm, 0.31 and later (0.29 does not batch requests)."""

from importlib import metadata

from powerband.engines.commanded import Commanded, Description, Program
from powerband.probes.http import read_json
from powerband.records.config import Effective, EngineConfig, Knob
from powerband.records.value import Missing


def mlx_knobs() -> tuple[Knob, ...]:
    """Every setting that can be turned; ``naive`` is the server's default."""
    return (
        Knob(
            name="decode_concurrency", kind="int", low=1, high=512, naive=32, grid=(1, 8, 16, 32, 64),
            help="sequences decoded together", addresses=("no_batching", "queueing"),
        ),
        Knob(
            name="prompt_concurrency", kind="int", low=1, high=128, naive=8, grid=(1, 4, 8, 16),
            help="prompts processed together", addresses=("no_batching", "head_of_line_blocking"),
        ),
        Knob(
            name="prefill_step_size", kind="int", low=32, high=32768, naive=2048, grid=(512, 1024, 2048, 4096),
            help="prompt tokens processed at once", addresses=("head_of_line_blocking", "compute_bound"),
        ),
        Knob(
            name="prompt_cache_size", kind="int", low=0, high=4096, naive=10, grid=(10, 64),
            help="prompts whose cache is kept", addresses=("prefix_cache_miss",),
        ),
        Knob(
            name="prompt_cache_bytes", kind="text", naive="", help="memory of kept caches, such as 4GB",
            addresses=("kv_pressure",),
        ),
        Knob(
            name="kv_bits", kind="int", low=0, high=8, naive=0, grid=(0, 8),
            help="bits of a cached value, 4 or 8; 0: as computed (0.32)", addresses=("memory_bandwidth_bound",),
            numerics=True,
        ),
        Knob(
            name="draft_model", kind="text", naive="", help="a smaller model that guesses tokens; ends batching",
            addresses=("memory_bandwidth_bound",),
        ),
        Knob(name="num_draft_tokens", kind="int", low=1, high=16, naive=3, help="tokens guessed by the draft model"),
        Knob(name="pipeline", kind="bool", naive=False, help="several machines share the layers, not each layer"),
        Knob(name="trust_remote_code", kind="bool", naive=False, help="run code that the tokenizer brings"),
        Knob(name="port", kind="int", low=0, high=65535, naive=0, help="port to serve on; 0 takes a free one"),
    )  # fmt: skip


def refuse(config: EngineConfig, longest_tokens: int) -> str | None:
    """A draft model takes requests one by one, so that what bounds a batch has no effect."""
    knobs = config.knobs
    if int(knobs.get("kv_bits", 0)) not in (0, 4, 8):
        return f"kv_bits={knobs['kv_bits']} is no width of a cached value: 4 or 8"
    if knobs.get("draft_model") and int(knobs.get("decode_concurrency", 1)) > 1:
        return "a draft model is not batched: set decode_concurrency=1"
    return None


def read_effective(url: str, log: str, config: EngineConfig) -> Effective | Missing:
    return Missing(missing="mlx_lm.server tells its settings nowhere")


def identify(url: str) -> tuple[str, str]:
    """The first model listed; the version is that of the package here, since no page tells it."""
    models = read_json(url + "/v1/models", timeout_s=30).get("data") or [{}]
    try:
        version = metadata.version("mlx-lm")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return str(models[-1].get("id", "default_model")), f"mlx-lm {version}"


def Mlx() -> Commanded:
    """No metrics page, and unknown request fields are passed over: answers may end before the asked length."""
    return Commanded(
        Description(
            name="mlx",
            title="MLX",
            program=Program(
                script=("mlx_lm.server",),
                variable="POWERBAND_MLX",
                package="mlx_lm",
                module=("mlx_lm", "server"),
                get="pip install mlx-lm",
            ),
            knobs=mlx_knobs,
            model_flag="--model",
            host_flag="--host",
            naive={"decode_concurrency": 32, "prompt_concurrency": 8},
            refuse=refuse,
            environment=(),
            loads_model=False,
            identify=identify,
            read_effective=read_effective,
        )
    )
