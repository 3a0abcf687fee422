"""SGLang's OpenAI-compatible server, 0.4 to 0.5: ``python -m sglang.launch_server``."""

from powerband.engines.commanded import Commanded, Description, Program
from powerband.engines.running import compare_settings, plain_values, served_model
from powerband.engines.server import ServerRunning, logged_settings
from powerband.engines.sglang_knobs import ENVIRONMENT, sglang_knobs
from powerband.probes.http import HttpError, find_json, read_page
from powerband.probes.live_memory import SGLANG_PAGES
from powerband.records.config import Effective, EngineConfig, Value


class SglangRunning(ServerRunning):
    """Adds what SGLang can be told while it runs."""

    def forget(self) -> bool:
        """Empty the prefix cache, so that a second run does not profit from the first; False where it cannot."""
        try:
            return read_page(self.url + "/flush_cache", timeout_s=60, body={}).status == 200
        except HttpError:
            return False


def refuse(config: EngineConfig, longest_tokens: int) -> str | None:
    """The rule of SGLang that this config breaks, in words, or None."""
    knobs = config.knobs
    cache = int(knobs.get("max_total_tokens", 0))
    if 0 < cache < longest_tokens:
        return f"max_total_tokens={cache} cannot hold the longest request of {longest_tokens} tokens"
    tensor, data = int(knobs.get("tp_size", 1)), int(knobs.get("dp_size", 1))
    if knobs.get("enable_dp_attention") is True and (data < 2 or tensor % data):
        return (
            f"enable_dp_attention spreads dp_size={data} over tp_size={tensor}: dp_size must divide it and be above 1"
        )
    if int(knobs.get("chunked_prefill_size", 8192)) <= 0 and knobs.get("enable_mixed_chunk") is True:
        return "enable_mixed_chunk needs chunks, and chunked_prefill_size is off"
    draft = knobs.get("speculative_draft_model_path", "")
    if knobs.get("speculative_algorithm", "none") in ("EAGLE", "EAGLE3", "STANDALONE") and not draft:
        return f"speculative_algorithm={knobs['speculative_algorithm']} needs speculative_draft_model_path"
    return None


def read_effective(url: str, log: str, config: EngineConfig) -> Effective:
    """Its arguments as it resolved them, and its log where a page tells less."""
    runs: dict[str, Value] = logged_settings(log)
    source = "startup log"
    if info := find_json(*(url + path for path in SGLANG_PAGES), timeout_s=10):
        known = {knob.name for knob in sglang_knobs()}
        runs |= {name: value for name, value in plain_values(info).items() if name in known}
        source = "its server info and startup log"
    return compare_settings(config.knobs, runs, source)


def identify(url: str) -> tuple[str, str]:
    info = find_json(*(url + path for path in SGLANG_PAGES), timeout_s=30)
    return served_model(url), f"SGLang {info.get('version', 'unknown')}"


def Sglang() -> Commanded:
    return Commanded(
        Description(
            name="sglang",
            title="SGLang",
            program=Program(
                variable="POWERBAND_SGLANG",
                package="sglang",
                module=("sglang.launch_server",),
                get="pip install sglang",
            ),
            knobs=sglang_knobs,
            model_flag="--model-path",
            host_flag="--host",
            naive={"chunked_prefill_size": 8192},
            refuse=refuse,
            always=("--enable-metrics",),
            environment=ENVIRONMENT,
            share_knob="mem_fraction_static",
            share=0.88,
            longest_knob="context_length",
            extra_body={"ignore_eos": True},
            kind=SglangRunning,
            identify=identify,
            read_effective=read_effective,
        )
    )
