"""Whether somebody else's work took the cores the engine needed: such a run says nothing about the engine."""

from collections.abc import Sequence
from statistics import fmean, median

from powerband.records.run import Contention
from powerband.records.sample import HostSample
from powerband.records.units import percent
from powerband.records.value import Missing, known

# Measured with llama.cpp, 2 threads on 2 cores, one neighbour: 5 % of a core cost nothing, 10 % cost 4 % of the speed,
# 25 % cost 16 %, 50 % cost 70 %, a whole core 96 %. A machine at rest and readings in 10 ms ticks stay below 0.05.
TAKEN_CORES = 0.15
EPISODE_CORES = 0.25  # a reading that is short by this belongs to an episode; less for a moment is normal
EPISODE_SHARE = 0.25  # of the watched time: a longer episode than this is not a brief spike
_ACTIVE_SHARE = 0.1  # an engine that uses less than this of its threads is waiting for work and needs no core
_SHORT_READING_S = 0.1  # CPU time is counted in ticks of 10 ms: a shorter reading says nothing
# Readings are half a second apart, two seconds more where a scrape times out. Virtual machines have been seen to stand
# still for minutes, clocks running: every latency of such a run is the pause's.
_STALL_S = 5.0
_FULL_SHARE = 0.95  # a machine busier than this has no core left to give


def assess_contention(samples: Sequence[HostSample], threads_wanted: int | None) -> Contention:
    """Judge from host readings taken during a run whether others (and the hypervisor's steal) took needed cores.

    An engine of ``threads_wanted`` threads is short by ``threads + others + steal - cores``, at most what others took;
    where its threads are not known, it is short of what others took while no core was idle. Readings in which the
    engine was idle do not count. Contended: the median shortage reaches TAKEN_CORES, or those of EPISODE_CORES fill
    more than a quarter of the time; a brief spike does neither. A gap of several seconds between two readings means
    that the machine stood still, which counts too.
    """
    samples = [sample for sample in samples if sample.interval_s >= _SHORT_READING_S]
    if not samples:
        return Contention(
            contended=False, reason="the host was not watched: no reading of 0.1 s or more", other_cores=0.0
        )
    other = fmean(sample.other_cores for sample in samples)
    stalled_s = max(sample.interval_s for sample in samples)
    if stalled_s >= max(_STALL_S, 4 * median(sample.interval_s for sample in samples)) and len(samples) > 2:
        reason = f"the machine stood still for about {stalled_s:.0f} s (no reading came): run again"
        return Contention(contended=True, reason=reason, other_cores=other)
    if threads_wanted is None and all(isinstance(sample.engine_cores, Missing) for sample in samples):
        reason = f"the engine's process is not known: its CPU use is among the {other:.2f} cores of others"
        return Contention(contended=False, reason=reason, other_cores=other)
    active = [sample for sample in samples if _is_active(sample, threads_wanted)]
    if not active:
        return Contention(contended=False, reason="the engine was idle in every reading", other_cores=other)
    short = [shortage_cores(sample, threads_wanted) for sample in active]
    watched_s = sum(sample.interval_s for sample in active)
    short_s = sum(sample.interval_s for sample, cores in zip(active, short, strict=True) if cores >= EPISODE_CORES)
    share = short_s / watched_s if watched_s > 0 else 0.0
    contended = median(short) >= TAKEN_CORES or share > EPISODE_SHARE
    return Contention(
        contended=contended, reason=_reason(active, short, share, contended, threads_wanted), other_cores=other
    )


def _is_active(sample: HostSample, threads: int | None) -> bool:
    used = known(sample.engine_cores)
    return used is None or used >= _ACTIVE_SHARE * (1 if threads is None else min(threads, sample.cores))


def shortage_cores(sample: HostSample, threads: int | None) -> float:
    """How many cores the engine was short of, at most what others and the hypervisor took."""
    taken = sample.other_cores + sample.steal_cores
    if threads is not None:
        return min(taken, max(0.0, min(threads, sample.cores) + taken - sample.cores))
    used = (known(sample.engine_cores) or 0.0) + sample.client_cores + taken
    return taken if used >= _FULL_SHARE * sample.cores else 0.0


def _reason(
    samples: Sequence[HostSample], short: Sequence[float], share: float, contended: bool, threads: int | None
) -> str:
    cores = samples[-1].cores
    taken = median(sample.other_cores for sample in samples)
    stolen = median(sample.steal_cores for sample in samples)
    used = f"others used {taken:.2f} of {cores} cores"
    if stolen >= 0.01:
        used += f" and the hypervisor took {stolen:.2f}"
    used += f" (median of {len(samples)} readings with the engine busy)"
    wants = "its threads are not known" if threads is None else f"the engine runs {threads} threads"
    if not contended:
        spikes = sum(cores_short >= EPISODE_CORES for cores_short in short)
        return used + (f"; {wants}; {spikes} brief spikes are tolerated" if spikes else f"; {wants}")
    worst = max(short)
    instead = "" if threads is None or threads < cores else ", or leave them a core with fewer threads"
    return (
        f"{used}; {wants}, and it was short of {median(short):.2f} cores in the median, {worst:.2f} at worst, "
        f"for {percent(share)} of the time: run again when the machine is idle{instead}"
    )
