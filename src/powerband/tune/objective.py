"""What a search makes large, in words; the figures themselves are in records/objective.py."""

from powerband.records.rounds import Objective

UNIT: dict[Objective, str] = {
    "goodput_per_s": "requests/s within the promise",
    "output_tokens_per_s": "output tokens/s",
}


def format_value(value: float, objective: Objective) -> str:
    """Three significant digits with the unit."""
    return f"{value:.3g} {UNIT[objective]}"


def format_gain(value: float, reference: float) -> str:
    """How ``value`` stands to ``reference``, in words."""
    if reference <= 0:
        return "from nothing" if value > 0 else "no change"
    ratio = value / reference
    return f"{ratio:.2g} times" if ratio >= 2 else f"{ratio - 1:+.1%}"
