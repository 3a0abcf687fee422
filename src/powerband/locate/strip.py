"""A trace's window in equal bins: how much of each the device was at work, and what it waited for in the rest."""

import numpy as np

from powerband.locate.activity import Floats, Ints
from powerband.locate.gaps import Gaps
from powerband.records.timeline import Timeline

AT_WORK = "at work"


def bin_window(timeline: Timeline, gaps: Gaps, bins: int) -> dict[str, Floats]:
    """Shares of each bin by name, ``AT_WORK`` first, then the parts of gaps that occur; those of a bin sum to 1.

    What a gap was for is spread evenly over the gap.
    """
    start, end = int(timeline.work_start_ns.min()), int(timeline.work_end_ns.max())
    edges = np.linspace(start, end, bins + 1)
    width_ns = max((end - start) / bins, 1e-9)
    waits = {name: _spread(edges, gaps, ns) / width_ns for name, ns in gaps.parts.items() if ns.any()}
    waited = sum(waits.values(), np.zeros(bins))
    return {AT_WORK: np.clip(1.0 - waited, 0.0, 1.0), **waits}


def _spread(edges: Floats, gaps: Gaps, spent_ns: Floats) -> Floats:
    """Nanoseconds in each bin: the running total rises within gaps alone."""
    total = np.cumsum(spent_ns)
    instants: Ints = np.stack([gaps.start_ns, gaps.end_ns], axis=1).ravel()
    return np.diff(np.interp(edges, instants, np.stack([total - spent_ns, total], axis=1).ravel()))
