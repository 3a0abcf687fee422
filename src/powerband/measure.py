"""Measure one config under one workload: start the engine, warm it up, send, watch, stop; the Run is the evidence."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from powerband.engines.base import Engine, RunningEngine
from powerband.health import raise_if_broken
from powerband.load.runner import run_load
from powerband.load.target import Progress, Target
from powerband.locate.contention import assess_contention
from powerband.probes.host import HostProbe
from powerband.probes.nvml_apart import NvmlApart
from powerband.probes.provenance import read_provenance
from powerband.probes.watch import EVERY_S
from powerband.records.config import EngineConfig
from powerband.records.run import Run
from powerband.records.sample import DeviceSample, EngineSample, HostSample
from powerband.records.value import Missing
from powerband.records.workload import Workload
from powerband.stand import Stand
from powerband.warm_up import raise_if_interrupted, warm_up

_LEAD_NS = 200_000_000  # from "now" to the first scheduled request: the sampler and the client are up by then

OnProgress = Callable[[Progress], None]


def measure(
    engine: Engine,
    config: EngineConfig,
    workload: Workload,
    *,
    run_id: str,
    folder: Path,
    command: str,
    cut_s: float,
    on_progress: OnProgress | None = None,
    stand: Stand | None = None,
) -> Run:
    """Run ``workload`` against an engine with ``config``: a fresh one, whose log goes into ``folder``, or ``stand``'s.

    What has not ended ``cut_s`` after the start counts as dropped.

    Raises EngineError where the engine dies, at start or in the run, or hangs; it is stopped then.
    """
    running, started_for = (engine.start(config, folder), "") if stand is None else stand.take(engine, config, folder)
    try:
        target = target_of(engine, running)
        warmed = warm_up(running, target, workload)
        run = observe(
            running,
            target,
            config,
            workload,
            run_id=run_id,
            command=command,
            cut_s=cut_s,
            on_progress=on_progress,
        )
    except BaseException:
        running.stop()
        raise
    if stand is None:
        running.stop()
    else:
        stand.give_back(running, config, started_for or run_id)
    run = msgspec.structs.replace(run, notes=(*run.notes, *warmed.notes))
    if not started_for:
        return msgspec.structs.replace(run, warm_up=warmed.bursts)
    note = f"served by the engine that was started for {started_for}, its prefix cache emptied"
    return msgspec.structs.replace(run, startup_s=0.0, notes=(*run.notes, note))


def target_of(engine: Engine, running: RunningEngine) -> Target:
    """Where requests to it go, with its key and what they need so that answers have the asked length."""
    return Target(
        url=running.url, model=running.model_id, api_key=running.api_key or None, extra_body=engine.extra_body
    )


def observe(
    running: RunningEngine,
    target: Target,
    config: EngineConfig,
    workload: Workload,
    *,
    run_id: str,
    command: str,
    cut_s: float,
    on_progress: OnProgress | None = None,
    workers: int = 1,
) -> Run:
    """Send ``workload`` to an engine that runs already, from ``workers`` processes, and watch it and the host."""
    provenance = read_provenance(command, running.version)
    with _Watch(running) as watch:
        loaded = run_load(target, workload, t0_ns=watch.t0_ns, deadline_s=cut_s, progress=on_progress, workers=workers)
    raise_if_interrupted(loaded)
    raise_if_broken(running, target, loaded)
    threads, memory = config.knobs.get("n_threads"), running.memory()
    return Run(
        run_id=run_id,
        basis="measured",
        config=config,
        effective=running.effective(),
        workload=workload,
        traces=loaded.traces,
        end_ns=loaded.end_ns,
        engine_samples=tuple(watch.engine_samples),
        host_samples=tuple(watch.host_samples),
        device_samples=tuple(watch.device_samples),
        client=loaded.client,
        contention=assess_contention(watch.host_samples, threads if isinstance(threads, int) else None),
        provenance=provenance,
        startup_s=running.startup_s,
        notes=(*loaded.notes, *watch.notes()),
        memory=None if isinstance(memory, Missing) else memory.report,
    )


class _Watch:
    """Samples engine, host and devices in a thread of its own, on the run's clock, until the block ends.

    Devices are watched where the engine runs on this machine: those of another say nothing about it.
    """

    def __init__(self, running: RunningEngine) -> None:
        self.engine_samples: list[EngineSample] = []
        self.host_samples: list[HostSample] = []
        self.device_samples: list[DeviceSample] = []
        self._running = running
        self._host = HostProbe(running.pid)
        self._devices = NvmlApart() if running.pid is not None else None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_over, name="powerband-watch", daemon=True)
        self.t0_ns = time.monotonic_ns() + _LEAD_NS

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=10)
        if self._devices is not None and not self._thread.is_alive():
            self._devices.close()

    def notes(self) -> tuple[str, ...]:
        return (self._devices.died,) if self._devices is not None and self._devices.died else ()

    def _sample_until_over(self) -> None:
        self._take()
        while not self._over.wait(EVERY_S):
            self._take()
        self._take()

    def _take(self) -> None:
        now_ns = time.monotonic_ns() - self.t0_ns
        self.host_samples.append(self._host.sample(now_ns))
        self.engine_samples.append(self._running.sample(now_ns))
        if self._devices is not None:
            self.device_samples += self._devices.sample(now_ns)
