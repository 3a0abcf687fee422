"""Watch a server that runs already: its /metrics, the host and its devices, read-only, for a while."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from powerband.probes.engine_metrics import missing_sample, to_sample
from powerband.probes.host import HostProbe
from powerband.probes.http import HttpError, read_page
from powerband.probes.nvml_apart import NvmlApart
from powerband.records.errors import MachineError
from powerband.records.sample import DeviceSample, EngineSample, HostSample

# llama.cpp answers /metrics between two steps: asking more often would cost it more than it tells.
EVERY_S = 0.5
_TIMEOUT_S = 2.0  # llama.cpp answers /metrics between two steps, so a long prompt holds it up


@dataclass(slots=True)
class Watched:
    """What was seen; times in ns from the start of the watch."""

    engine: list[EngineSample] = field(default_factory=list)
    host: list[HostSample] = field(default_factory=list)
    devices: list[DeviceSample] = field(default_factory=list)


def watch_server(
    url: str,
    seconds: float,
    *,
    engine_pid: int | None = None,
    watch_host: bool = True,
    api_key: str = "",
    progress: Callable[[float, EngineSample], None] | None = None,
) -> Watched:
    """Samples over ``seconds``, two a second; ``watch_host`` adds host and cards; ``progress`` gets the seconds left.

    Raises MachineError where nothing answers at ``url`` at the start; later failures are samples with Missing values.
    Ctrl-C ends the watch early and keeps what was seen.
    """
    probe, cards = (HostProbe(engine_pid), NvmlApart()) if watch_host else (None, None)
    start_ns = time.monotonic_ns()
    seen = Watched(engine=[scrape(url, 0, api_key=api_key, must_answer=True)])
    try:
        while (passed_s := (time.monotonic_ns() - start_ns) / 1e9) < seconds:
            time.sleep(min(EVERY_S, seconds - passed_s))
            now_ns = time.monotonic_ns() - start_ns
            seen.engine.append(scrape(url, now_ns, api_key=api_key))
            if probe is not None and cards is not None:
                seen.host.append(probe.sample(now_ns))
                seen.devices += cards.sample(now_ns)
            if progress is not None:
                progress(max(seconds - now_ns / 1e9, 0.0), seen.engine[-1])
    except KeyboardInterrupt:
        if len(seen.engine) < 2:
            raise
    finally:
        if cards is not None:
            cards.close()
    return seen


def scrape(
    url: str, t_ns: int, *, api_key: str = "", path: str = "/metrics", must_answer: bool = False
) -> EngineSample:
    """One reading of a metrics page; with ``must_answer`` a server that is not there is an error and no sample."""
    try:
        reply = read_page(url + path, timeout_s=_TIMEOUT_S, api_key=api_key)
    except HttpError as error:
        if must_answer:
            raise MachineError(error.message, hint="is the server running, and is this its address?") from None
        return missing_sample(error.message, t_ns)
    if reply.status != 200:
        return missing_sample(f"{path} answered HTTP {reply.status}", t_ns)
    return to_sample(reply.text, t_ns)
