"""``with powerband.profile() as p: model.generate(...)``: record steps of the block, and say what they wait for."""

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from powerband.locate.timeline import diagnose_timeline
from powerband.probes.host_ops import read_host_ops
from powerband.probes.kineto import read_kineto
from powerband.profiling.recorder import MARK, Recorder
from powerband.records.errors import RequestError
from powerband.records.finding import Diagnosis

# Below this the cost of recording cannot be told from the steps' own spread.
_SEEN = 1.03
NO_STEP = (
    "a step is a call of the outermost torch.nn.Module in this process; a program whose model runs in another process "
    "(vLLM: VLLM_ENABLE_V1_MULTIPROCESSING=0 keeps it here) or without modules needs p.step(), or warm-up 0"
)


class profile:
    """Record ``steps`` steps of the block after ``warm_up`` of them; ``diagnosis`` says what the time went to.

    ``out`` is the trace to write (.json or .json.gz; a temporary file where not given). ``step()`` may be called at
    the end of each step where the outermost module's calls are not the steps. Raises RequestError where torch is not
    installed, and on ``diagnosis`` where nothing was recorded.
    """

    def __init__(
        self, *, steps: int = 20, warm_up: int = 5, out: str | Path | None = None, stack: bool = False
    ) -> None:
        check_counts(steps, warm_up)
        self._folder = tempfile.TemporaryDirectory(prefix="powerband-") if out is None else None
        trace = Path(self._folder.name) / "trace.json.gz" if self._folder else Path(str(out))
        self._recorder = Recorder(trace, steps=steps, warm_up=warm_up, stack=stack)
        self._diagnosis: Diagnosis | None = None

    def __enter__(self) -> Self:
        try:
            self._recorder.start()
        except ImportError as error:
            raise RequestError(f"torch cannot be imported: {error}", hint="profile runs beside torch") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._recorder.stop()

    def step(self) -> None:
        """The end of a step, in the program's own word."""
        self._recorder.step()

    @property
    def trace(self) -> Path:
        return self._recorder.trace

    @property
    def summary(self) -> dict[str, Any]:
        """Steps seen and recorded, and the median step with and without the profiler."""
        return self._recorder.summary()

    @property
    def diagnosis(self) -> Diagnosis:
        if self._diagnosis is None:
            self._diagnosis = diagnose_recording(self.summary)
        return self._diagnosis

    def __str__(self) -> str:
        from powerband.report.diagnosis import render_diagnosis

        return render_diagnosis(self.diagnosis)


def check_counts(steps: int, warm_up: int) -> None:
    """Raise RequestError where a number of steps makes no sense."""
    if steps < 1 or warm_up < 0:
        raise RequestError(
            f"{steps} steps after {warm_up} of warm-up cannot be recorded", hint="at least 1 step, and 0 or more before"
        )


def diagnose_recording(summary: dict[str, Any]) -> Diagnosis:
    """The diagnosis of what a recorder wrote, with what recording cost among the notes.

    Raises RequestError where no step was recorded or the trace cannot be read.
    """
    import msgspec

    if summary["failure"]:
        raise RequestError(str(summary["failure"]), hint="a smaller recording may do: --steps 5")
    trace = Path(summary["trace"])
    if not trace.is_file():
        seen = f"{summary['steps_seen']} steps were seen and none was recorded"
        raise RequestError(
            seen, hint=NO_STEP if not summary["steps_seen"] else "fewer steps of warm-up, or a longer run"
        )
    if summary["cuda"]:
        found = diagnose_timeline(read_kineto(trace))
    else:
        from powerband.locate.host_ops import diagnose_host_ops

        found = diagnose_host_ops(read_host_ops(trace, MARK))
    return msgspec.structs.replace(found, notes=(describe_cost(summary), *found.notes))


def describe_cost(summary: dict[str, Any]) -> str:
    """One line: how many steps of what, and how much slower they ran while recorded."""
    steps = (
        f"{summary['steps_recorded']} steps recorded of {summary['steps_seen']} ({summary['module'] or 'no module'})"
    )
    plain, recorded = summary["plain_step_s"], summary["recorded_step_s"]
    if not plain or not recorded:
        return f"{steps}; too few steps beside them to say what recording cost"
    cost = f"the median step takes {recorded * 1e3:.3g} ms recorded and {plain * 1e3:.3g} ms unrecorded"
    slower = recorded / plain
    if slower < _SEEN:
        return f"{steps}; {cost}: what recording costs is within the noise"
    between = "gaps between kernels are" if summary["cuda"] else "time between operators is"
    return f"{steps}; {cost} ({slower:.2f}x): {between} longer here than without it"
