"""Who uses the CPU: the engine's process tree, this client's, everybody else, and the hypervisor."""

import ipaddress
import os
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

import psutil

from powerband.records.sample import HostSample
from powerband.records.value import Measured, Missing

_NO_ENGINE = Missing(missing="no engine process to watch")
_GONE = Missing(missing="the engine process has ended")


class HostProbe:
    """Reads CPU use since the last reading; ``engine_pid`` is the root of the engine's process tree, or None.

    ``other_cores`` is what the machine as a whole spent, less engine and client: it needs no permission to look into
    the processes of others. A process that starts and ends between two readings counts among the others.
    """

    def __init__(self, engine_pid: int | None) -> None:
        self._engine_pid = engine_pid
        self._cores = usable_cores()
        self._engine, self._client = _Tree(), _Tree()
        self._last_s, self._machine = time.monotonic(), _machine_seconds()
        self._read_trees()

    def sample(self, t_ns: int) -> HostSample:
        """CPU use over the interval since the last call (or since the probe was made), stamped ``t_ns``."""
        now_s, machine = time.monotonic(), _machine_seconds()
        engine_s, client_s = self._read_trees()
        interval_s = max(1e-6, now_s - self._last_s)
        busy_s = max(0.0, machine[0] - self._machine[0])
        steal_s = max(0.0, machine[1] - self._machine[1])
        self._last_s, self._machine = now_s, machine
        engine = self._engine
        # Ticks are 10 ms and processes are read after the machine: a small negative rest is rounding.
        other_s = max(0.0, busy_s - (engine_s or 0.0) - (client_s or 0.0))
        return HostSample(
            t_ns=t_ns,
            interval_s=interval_s,
            cores=self._cores,
            engine_cores=self._of_engine(None if engine_s is None else engine_s / interval_s),
            client_cores=(client_s or 0.0) / interval_s,
            other_cores=other_s / interval_s,
            steal_cores=steal_s / interval_s,
            engine_rss_bytes=self._of_engine(engine.rss_bytes),
            available_bytes=int(psutil.virtual_memory().available),
            engine_switches_per_s=self._of_engine(None if engine.switches is None else engine.switches / interval_s),
            engine_allowed_cores=self._of_engine(engine.allowed_cores),
        )

    def _read_trees(self) -> tuple[float | None, float | None]:
        """CPU seconds since the last reading of the engine's and of the client's tree, each process in one of them."""
        engine = set(_tree_of(self._engine_pid)) if self._engine_pid is not None else set()
        # The engine is a descendant of this process, by way of its guard: it is not the client.
        client = set(_tree_of(os.getpid())) - engine
        return self._engine.advance(engine), self._client.advance(client)

    def _of_engine(self, value: float | None) -> Measured:
        if self._engine_pid is None:
            return _NO_ENGINE
        return _GONE if value is None else float(value)


class _Tree:
    """CPU time, memory and context switches of a set of processes that come and go."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._cpu_s: dict[int, float] = {}
        self._switched: dict[int, int] = {}
        self.rss_bytes: float | None = None
        self.switches: int | None = None  # since the last reading
        self.allowed_cores: int | None = None  # that any of the processes may run on

    def advance(self, pids: Iterable[int]) -> float | None:
        """CPU seconds spent since the last call by the processes that live now; None when none does."""
        spent, rss, switched, alive = 0.0, 0, 0, False
        allowed: set[int] = set()
        for pid in pids:
            reading = self._read(pid)
            if reading is None:
                continue
            cpu_s, memory, switches = reading
            # A process first seen now began in this interval: all it spent counts.
            spent += cpu_s - self._cpu_s.get(pid, 0.0)
            switched += switches - self._switched.get(pid, 0)
            self._cpu_s[pid], self._switched[pid] = cpu_s, switches
            rss, alive = rss + memory, True
            allowed |= _affinity(pid)
        self.rss_bytes, self.switches = (rss, switched) if alive else (None, None)
        self.allowed_cores = len(allowed) or None
        return max(0.0, spent) if alive else None

    def _read(self, pid: int) -> tuple[float, int, int] | None:
        try:
            process = self._known.get(pid)
            if process is None or not process.is_running():
                process = self._known[pid] = psutil.Process(pid)
                self._cpu_s.pop(pid, None)
                self._switched.pop(pid, None)
            with process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:
                    return None
                times, switches = process.cpu_times(), process.num_ctx_switches()
                memory = int(process.memory_info().rss)
        except psutil.Error:
            return None
        return times.user + times.system, memory, switches.voluntary + switches.involuntary


def serving_pid(url: str) -> int | None:
    """The process on this host that answers at ``url``: the root of its tree; None where it is elsewhere or not seen.

    A server that forks workers hands them its socket, so the one that listens may be a child: the leader of its process
    group is taken where that is an ancestor and no ancestor of ours.
    """
    where = urlsplit(url)
    if not is_here(where.hostname or "") or where.port is None:
        return None
    try:
        open_sockets = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return None
    listening = (one for one in open_sockets if one.status == psutil.CONN_LISTEN and one.laddr.port == where.port)
    found: int | None = next((one.pid for one in listening if one.pid is not None), None)
    if found is None:
        return None
    try:
        leader = os.getpgid(found)
        above = {one.pid for one in psutil.Process(found).parents()}
    except (OSError, psutil.Error):
        return found
    return leader if leader in above and os.getpid() not in _tree_of(leader) else found


def is_here(host: str) -> bool:
    """Whether ``host`` names this machine's loopback: nothing is resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _affinity(pid: int) -> set[int]:
    """Cores that a process may run on; none where the system does not tell."""
    try:
        return os.sched_getaffinity(pid)
    except (AttributeError, OSError):
        return set()


def _machine_seconds() -> tuple[float, float]:
    """CPU seconds of the whole machine: spent by processes and interrupts, and stolen by the hypervisor."""
    times = psutil.cpu_times()
    busy = times.user + times.system + getattr(times, "nice", 0.0)
    busy += getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)
    return busy, getattr(times, "steal", 0.0)


def usable_cores() -> int:
    """Cores this process may run on: fewer than the machine has where an affinity mask is set."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return psutil.cpu_count() or 1


def physical_cores() -> int:
    """Of those, without their second hardware threads, which share the units that a matrix product needs."""
    return max(1, min(psutil.cpu_count(logical=False) or usable_cores(), usable_cores()))


def _tree_of(root: int) -> list[int]:
    try:
        return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    except psutil.Error:
        return [root]
