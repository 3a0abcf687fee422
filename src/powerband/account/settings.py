"""Reading knobs that bear on memory: the engine's spelling, its default where the knob is not set."""

from powerband.account.kv_cache import DTYPE_BYTES
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError, unknown_name


class Settings:
    """The knobs of one config, each read with the engine's default."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._knobs = {name.lstrip("-").replace("-", "_"): value for name, value in config.knobs.items()}

    def whole(self, name: str, default: int, *, low: int = 1) -> int:
        value = self._knobs.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value:
            raise RequestError(f"knob {name}={value!r} is not a whole number", hint=f"such as {default}")
        if value < low:
            raise RequestError(f"knob {name}={value} is too small", hint=f"accepted: {low} or more")
        return int(value)

    def share(self, name: str, default: float) -> float:
        value = self._knobs.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise RequestError(f"knob {name}={value!r} is not a share of memory", hint="accepted: above 0, up to 1")
        return float(value)

    def amount(self, name: str) -> float:
        """A number of at least 0, 0 where the knob is not set."""
        value = self._knobs.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise RequestError(f"knob {name}={value!r} is not an amount", hint="accepted: 0 or more")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._knobs.get(name, default)
        return value.lower() in {"true", "on", "1", "yes"} if isinstance(value, str) else bool(value)

    def word(self, name: str, default: str) -> str:
        return str(self._knobs.get(name, default)).lower()

    def dtype_bytes(self, name: str, default: str, auto: float) -> float:
        """Bytes of a cached value; ``auto`` where the knob says auto."""
        word = self.word(name, default)
        if word == "auto":
            return auto
        if word not in DTYPE_BYTES:
            raise unknown_name(f"value for knob {name}", word, [*DTYPE_BYTES, "auto"])
        return DTYPE_BYTES[word]
