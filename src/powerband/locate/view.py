"""Everything the rules look at, computed once from a run: activity, service, steps, counters and how time splits."""

from dataclasses import dataclass

from powerband.locate.activity import Activity, Floats, Streams, compute_activity, read_streams
from powerband.locate.counters import Counters, mean_over_time, read_counters
from powerband.locate.device_use import DeviceUse, read_device_use
from powerband.locate.service import Service, infer_service
from powerband.locate.steps import Gaps, StepCurve, fit_steps, read_gaps
from powerband.records.hardware import DeviceSpec
from powerband.records.memory import MemoryLedger
from powerband.records.model import ModelSpec
from powerband.records.run import Run
from powerband.records.slo import Slo


@dataclass(frozen=True, slots=True)
class View:
    """One run, seen from outside the engine."""

    run: Run
    streams: Streams
    activity: Activity
    counters: Counters
    service: Service
    gaps: Gaps
    steps: StepCurve | None
    ledger: MemoryLedger | None = None
    model: ModelSpec | None = None
    device: DeviceSpec | None = None
    slo: Slo | None = None
    use: DeviceUse | None = None

    @property
    def window_s(self) -> float:
        return self.activity.window_ns / 1e9

    @property
    def device_name(self) -> str:
        return "the device" if self.device is None else self.device.name

    def mean_in_window(self, values: Floats) -> float:
        """Time average of a gauge over the window alone."""
        t = self.counters.t_ns
        inside = (t >= self.activity.edges_ns[0]) & (t <= self.activity.edges_ns[-1])
        return mean_over_time(t[inside], values[inside])


def build_view(
    run: Run,
    *,
    ledger: MemoryLedger | None = None,
    model: ModelSpec | None = None,
    device: DeviceSpec | None = None,
    slo: Slo | None = None,
) -> View:
    """Read a run once; the arrays are shared by the breakdown and every rule."""
    streams = read_streams(run)
    activity = compute_activity(run, streams)
    counters = read_counters(run.engine_samples)
    service = infer_service(run, streams, activity, counters)
    gaps = read_gaps(streams, activity, service)
    return View(
        run=run,
        streams=streams,
        activity=activity,
        counters=counters,
        service=service,
        gaps=gaps,
        steps=fit_steps(gaps),
        ledger=ledger,
        model=model,
        device=device,
        slo=slo,
        use=read_device_use(run.device_samples, activity),
    )
