"""Watch a server that runs already: its /metrics and the host, read-only, for a while."""

import time
from collections.abc import Callable

from powerband.probes.engine_metrics import missing_sample, to_sample
from powerband.probes.host import HostProbe
from powerband.probes.http import HttpError, read_page
from powerband.records.errors import MachineError
from powerband.records.sample import EngineSample, HostSample

# llama.cpp answers /metrics between two steps: asking more often would cost it more than it tells.
EVERY_S = 0.5
_TIMEOUT_S = 2.0


def watch_server(
    url: str,
    seconds: float,
    *,
    engine_pid: int | None = None,
    watch_host: bool = True,
    api_key: str = "",
    progress: Callable[[float, EngineSample], None] | None = None,
) -> tuple[tuple[EngineSample, ...], tuple[HostSample, ...]]:
    """Samples over ``seconds``, two a second, times in ns from the start; ``progress`` is told the seconds left.

    Raises MachineError where nothing answers at ``url`` at the start; later failures are samples with Missing values.
    Ctrl-C ends the watch early and keeps what was seen.
    """
    probe = HostProbe(engine_pid) if watch_host else None
    start_ns = time.monotonic_ns()
    engine, host = [scrape(url, 0, api_key=api_key, must_answer=True)], list[HostSample]()
    try:
        while (passed_s := (time.monotonic_ns() - start_ns) / 1e9) < seconds:
            time.sleep(min(EVERY_S, seconds - passed_s))
            now_ns = time.monotonic_ns() - start_ns
            engine.append(scrape(url, now_ns, api_key=api_key))
            if probe is not None:
                host.append(probe.sample(now_ns))
            if progress is not None:
                progress(max(seconds - now_ns / 1e9, 0.0), engine[-1])
    except KeyboardInterrupt:
        if len(engine) < 2:
            raise
    return tuple(engine), tuple(host)


def scrape(url: str, t_ns: int, *, api_key: str = "", must_answer: bool = False) -> EngineSample:
    """One reading of ``url``/metrics; with ``must_answer`` a server that is not there is an error and no sample."""
    try:
        reply = read_page(url + "/metrics", timeout_s=_TIMEOUT_S, api_key=api_key)
    except HttpError as error:
        if must_answer:
            raise MachineError(error.message, hint="is the server running, and is this its address?") from None
        return missing_sample(error.message, t_ns)
    if reply.status != 200:
        return missing_sample(f"/metrics answered HTTP {reply.status}", t_ns)
    return to_sample(reply.text, t_ns)
