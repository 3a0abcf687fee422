"""Values out of a config.json, each checked, each error naming the file, the field and what was found there."""

from collections.abc import Mapping
from typing import Any

from powerband.records.errors import RequestError

_ABSURD = 1 << 31


class Keys:
    """The fields of one model config; several names may stand for one field, the first one present counts."""

    def __init__(self, source: str, fields: Mapping[str, Any]) -> None:
        self.source = source
        self.fields = fields

    def count(self, *names: str) -> int:
        """A whole number of at least 1; raises RequestError where it is missing or absurd."""
        value = self._first(names)
        if value is None:
            raise RequestError(
                f"{self.source} has no field {names[0]!r}",
                hint=("also looked for " + ", ".join(names[1:])) if len(names) > 1 else "is this a language model?",
            )
        return self._checked(names, value, low=1)

    def optional(self, *names: str, default: int = 0) -> int:
        value = self._first(names)
        return default if value is None else self._checked(names, value, low=0)

    def number(self, *names: str, default: float = 0.0) -> float:
        value = self._first(names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(names, value, "a number")
        return float(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        value = self._first(names)
        return default if value is None else bool(value)

    def text(self, *names: str, default: str = "") -> str:
        value = self._first(names)
        return value if isinstance(value, str) else default

    def items(self, *names: str) -> list[Any]:
        value = self._first(names)
        return list(value) if isinstance(value, (list, tuple)) else []

    def section(self, *names: str) -> "Keys | None":
        value = self._first(names)
        return Keys(self.source, value) if isinstance(value, Mapping) and value else None

    def has(self, *names: str) -> bool:
        return self._first(names) is not None

    def divisible(self, whole: int, by: int, what: str) -> int:
        """``whole / by``; raises RequestError where there is a remainder."""
        if by <= 0 or whole % by:
            raise RequestError(f"{self.source}: {what}: {whole} does not divide by {by}", hint="check both fields")
        return whole // by

    def _first(self, names: tuple[str, ...]) -> Any:
        for name in names:
            if self.fields.get(name) is not None:
                return self.fields[name]
        return None

    def _checked(self, names: tuple[str, ...], value: Any, *, low: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(names, value, "a whole number")
        if not low <= value < _ABSURD:
            raise self._wrong(names, value, f"{low} or more" if value < low else f"below {_ABSURD}")
        return value

    def _wrong(self, names: tuple[str, ...], value: Any, accepted: str) -> RequestError:
        shown = repr(value)
        name = next(name for name in names if self.fields.get(name) is not None)
        return RequestError(f"{self.source}: {name} is {shown[:60]}", hint=f"accepted: {accepted}")
