"""Traces of the ranks of one job: the rank that the others wait for bounds them all, so its own time is what counts."""

from collections.abc import Sequence

import msgspec
import numpy as np

from powerband.locate.gaps import split_busy
from powerband.locate.timeline import diagnose_timeline
from powerband.records.finding import Diagnosis
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.timeline import Timeline
from powerband.records.units import percent

# Ranks whose communication differs by less of the window wait for nobody in particular.
_UNEVEN = 0.05


def diagnose_ranks(
    timelines: Sequence[Timeline], *, model: ModelSpec | None = None, device: DeviceSpec | None = None
) -> tuple[int, Diagnosis]:
    """Which rank comes last to the collectives, and its diagnosis; ``notes`` begin with a line a rank.

    A collective ends everywhere at once, so the rank that spends least in it came last; on the others it holds their
    wait. Clocks of several machines need not agree for that.
    """
    parts = [split_busy(timeline) for timeline in timelines]
    exposed = [part.exposed_communication_ns / max(part.window_ns, 1) for part in parts]
    last = int(np.argmin(exposed))
    found = diagnose_timeline(timelines[last], model=model, device=device)
    if len(timelines) == 1:
        return last, found
    name, spread = timelines[last].source, max(exposed) - exposed[last]
    if not any(exposed):
        said = f"no rank communicates: shown is {name} alone"
    elif spread < _UNEVEN:
        said = f"the ranks communicate alike (within {percent(spread, 1)} of the window): shown is {name}"
    else:
        said = (
            f"the others wait for {name}: communication takes up to {percent(max(exposed), 1)} of "
            f"theirs and is mostly waiting"
        )
    lines = [
        f"{timeline.source}: busy {percent(part.busy_ns / max(part.window_ns, 1), 1)}, exposed "
        f"communication {percent(share, 1)}"
        for timeline, part, share in zip(timelines, parts, exposed, strict=True)
    ]
    sources = tuple(f"trace {timeline.source}" for timeline in timelines)
    return last, msgspec.structs.replace(found, sources=sources, notes=(said, *lines, *found.notes))
