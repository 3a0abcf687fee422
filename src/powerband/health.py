"""Whether an engine came through a run: one that is dead, broken inside or hung is an error that names the cause."""

import time

from powerband.engines.base import RunningEngine
from powerband.load.runner import run_load
from powerband.load.target import Loaded, Target
from powerband.records.errors import EngineError
from powerband.records.units import format_duration, ns_to_s
from powerband.records.workload import RequestSpec, Workload

_SILENT_S = 10.0  # without a token for anybody, before an engine is asked whether it still answers
_ANSWER_S = 20.0  # for one token, with nothing else to do: what was under way has been given up by then


def raise_if_broken(running: RunningEngine, target: Target, loaded: Loaded, when: str = "during the run") -> None:
    """Raises EngineError where the engine died, lost a worker, or answers no more."""
    if not running.alive():
        raise _error(running, f"the engine died {when}", loaded)
    failed = any(trace.status == "error" for trace in loaded.traces)
    if failed and running.fault() is not None:
        raise _error(running, f"the engine broke {when}", loaded)
    silent_s = _silent_s(loaded)
    if silent_s is not None and not _answers(target):
        cut = sum(trace.status == "dropped" and trace.t_send_ns is not None for trace in loaded.traces)
        what = (
            f"the engine hung: no token for {format_duration(silent_s)} with {cut} requests under way, and none for a "
            f"request of its own within {format_duration(_ANSWER_S)}"
        )
        raise _error(running, what, loaded)


def _error(running: RunningEngine, what: str, loaded: Loaded) -> EngineError:
    done = sum(trace.status == "ok" for trace in loaded.traces)
    return broken(running, f"{what}, after {done} of {len(loaded.traces)} requests")


def broken(running: RunningEngine, what: str) -> EngineError:
    """``what`` happened to the engine, with the cause that its log names."""
    fault = running.fault()
    return EngineError(
        what + (f": {fault}" if fault else ""),
        hint="its log is in the run's folder",
        log_tail=() if fault else running.log_tail(),
    )


def _silent_s(loaded: Loaded) -> float | None:
    """How long nothing came while requests were under way at the end; None where that is not suspicious."""
    waiting = [trace for trace in loaded.traces if trace.status == "dropped" and trace.t_send_ns is not None]
    if not waiting:
        return None
    began_ns = min(trace.t_send_ns or 0 for trace in waiting)
    last_ns = max((trace.t_chunks_ns[-1] for trace in loaded.traces if trace.t_chunks_ns), default=began_ns)
    silent_s = ns_to_s(loaded.end_ns - max(began_ns, last_ns))
    return silent_s if silent_s >= _SILENT_S else None


def _answers(target: Target) -> bool:
    one = Workload(requests=(RequestSpec(offset_ns=0, input_tokens=1, output_tokens=1),), source="is it alive")
    answer = run_load(target, one, t0_ns=time.monotonic_ns(), deadline_s=_ANSWER_S)
    return any(trace.status == "ok" for trace in answer.traces)
