"""A server that answers at a url: what every adapter hands back."""

from collections.abc import Callable, Mapping

from powerband.engines.process import ServerProcess
from powerband.probes.http import HttpError, read_json, read_page
from powerband.probes.startup_log import StartupLog
from powerband.probes.watch import scrape
from powerband.records.config import Effective, Value
from powerband.records.errors import PowerbandError
from powerband.records.sample import EngineSample
from powerband.records.value import Missing

_ALIVE_S = 2.0


class Running:
    """Implements RunningEngine; ``process`` is None where the server is somebody else's.

    ``read_effective`` is called when asked for; an error in it becomes Missing with its message.
    """

    def __init__(
        self,
        url: str,
        *,
        model_id: str,
        version: str,
        process: ServerProcess | None = None,
        startup_s: float = 0.0,
        api_key: str = "",
        metrics_path: str = "/metrics",
        read_effective: Callable[[], Effective | Missing],
    ) -> None:
        self.url, self.model_id, self.version, self.startup_s = url, model_id, version, startup_s
        self.pid = None if process is None else process.pid
        self.api_key = api_key
        self._process, self._read_effective, self._metrics_path = process, read_effective, metrics_path

    def effective(self) -> Effective | Missing:
        try:
            return self._read_effective()
        except PowerbandError as error:
            return Missing(missing=error.message)

    def sample(self, t_ns: int) -> EngineSample:
        return scrape(self.url, t_ns, api_key=self.api_key, path=self._metrics_path)

    def alive(self) -> bool:
        if self._process is not None:
            return self._process.alive()
        try:
            return read_page(self.url + "/v1/models", timeout_s=_ALIVE_S, api_key=self.api_key).status < 500
        except HttpError:
            return False

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        return () if self._process is None else self._process.log_tail(lines)

    def fault(self) -> str | None:
        return None

    def forget(self) -> bool:
        return False

    def memory(self) -> StartupLog | Missing:
        return Missing(missing="this adapter does not read the engine's memory from its log")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()


def served_model(url: str) -> str:
    """The name of the model that a server of ours serves, as requests put it; raises HttpError."""
    return str(read_json(url + "/v1/models", timeout_s=30)["data"][0]["id"])


def compare_settings(asked: dict[str, Value], runs: dict[str, Value], source: str) -> Effective:
    """``runs`` as Effective, with every asked knob that runs differently; one that cannot be read back is left out.

    0, "auto", "none" and "" ask for nothing: what they became is told, and is no difference. False asks for something.
    """
    differs = {
        name: f"asked {value}, runs {runs[name]}"
        for name, value in asked.items()
        if name in runs and runs[name] != value and (value is False or value not in (0, "auto", "none", ""))
    }
    return Effective(values=runs, source=source, differs=differs)


def plain_values(document: Mapping[str, object]) -> dict[str, Value]:
    """What of a page of settings can be the value of a knob."""
    return {name: value for name, value in document.items() if isinstance(value, bool | int | float | str)}
