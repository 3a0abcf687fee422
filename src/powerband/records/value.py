"""A number with its basis and interval, or the reason there is none."""

from typing import Literal, dataclass_transform

import msgspec

Basis = Literal["computed", "simulated", "measured", "assumed"]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Immutable data; decoding rejects a field it does not know."""


class Missing(Record, tag_field="is", tag="missing"):
    """A measurement that is not there, and why; never written as 0.

    A record that may stand in its place carries the same tag field, so that JSON says which of the two it is.
    """

    missing: str


Measured = float | Missing


class Interval(Record):
    """Bounds that should hold the true value in a share ``level`` of cases."""

    low: float
    high: float
    level: float = 0.9


def known(value: Measured | None) -> float | None:
    """The number, or None where it is missing; for arithmetic that has its own way to go on without it."""
    return None if value is None or isinstance(value, Missing) else float(value)
