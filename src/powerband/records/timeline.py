"""What a profiler saw of one device: device work, the host calls that launched it, and what the host did meanwhile."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# Kinds of device work, as codes in ``Timeline.work_kind``.
KERNEL: Final = 0
COMMUNICATION: Final = 1
COPY: Final = 2
MEMSET: Final = 3


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals in ns on the trace's clock, sorted by start; ``thread`` and ``name`` index the timeline's lists."""

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    name: Ints

    @property
    def size(self) -> int:
        return int(self.start_ns.size)


@dataclass(frozen=True, slots=True)
class Timeline:
    """One device's work and its host side, as columns; times are ns from the first event kept.

    ``work_launch`` is the index of the host call that launched a piece of work in ``calls``, or -1: kernels of one
    graph share the call that launched the graph. ``ops`` are framework operators, ``waits`` host functions known to
    wait for something, ``loads`` input pipelines at work, ``marks`` annotations of the user or the engine.
    ``notes`` says what was assumed or left out.
    """

    source: str
    device: str
    work_start_ns: Ints
    work_end_ns: Ints
    work_stream: Ints
    work_kind: Ints
    work_name: Ints
    work_launch: Ints
    calls: Spans
    ops: Spans
    waits: Spans
    loads: Spans
    marks: Spans
    names: tuple[str, ...]
    threads: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def name_of(self, index: int) -> str:
        return self.names[index] if 0 <= index < len(self.names) else "?"


@dataclass(frozen=True, slots=True)
class HostOps:
    """What one host thread did in a trace without device work: framework operators and the steps they belong to.

    ``ops`` nest as calls do; ``steps`` are the program's steps, where it marked them; ``others`` counts operators of
    other threads, which are not here.
    """

    source: str
    ops: Spans
    steps: Spans
    names: tuple[str, ...]
    others: int = 0
    notes: tuple[str, ...] = ()
