"""SGLang's OpenAI-compatible server, 0.4 to 0.5: ``python -m sglang.launch_server``."""

from powerband.engines.commanded import Commanded, Description, Program
from powerband.engines.running import compare_settings
from powerband.engines.server import ServerRunning, logged_settings
from powerband.engines.sglang_knobs import ENVIRONMENT, sglang_knobs
from powerband.probes.http import HttpError, read_json, read_page
from powerband.records.config import Effective, EngineConfig, Value

# Where a server tells its arguments: the newer name first.
_INFO_PAGES = ("/server_info", "/get_server_info")


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
    """Its arguments as it resolved them, and its log where a page tells less; 0, "auto" and "none" ask for nothing."""
    runs: dict[str, Value] = logged_settings(log)
    source = "startup log"
    for path in _INFO_PAGES:
        try:
            info = read_json(url + path, timeout_s=10)
        except HttpError:
            continue
        if isinstance(info, dict):
            known = {knob.name for knob in sglang_knobs()}
            runs |= {name: value for name, value in info.items() if name in known and _plain(value)}
            source = f"{path} and startup log"
            break
    asked = {name: value for name, value in config.knobs.items() if value not in (0, "auto", "none", "")}
    return compare_settings(asked, runs, source)


def _plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str)


def identify(url: str) -> tuple[str, str]:
    model = str(read_json(url + "/v1/models", timeout_s=30)["data"][0]["id"])
    for path in _INFO_PAGES:
        try:
            return model, f"SGLang {read_json(url + path, timeout_s=30).get('version', 'unknown')}"
        except HttpError:
            continue
    return model, "SGLang unknown"


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
