"""Who holds the interpreter lock of an engine's Python processes: by py-spy, where it is installed."""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable

import msgspec
import psutil

from powerband.probes.cards import process_name

# A dump takes 0.1 s of a core and does not stop the process that it reads.
_EVERY_S, _MOST_PROCESSES, _DUMP_S = 1.0, 4, 10.0


class _Thread(msgspec.Struct):
    owns_gil: bool = False


_threads = msgspec.json.Decoder(list[_Thread])


class GilWatch:
    """Looks once a second, in a thread of its own while the block runs, whether a thread holds its process's lock.

    ``root`` and those below it are asked, at most four: the ones that py-spy can read and that spent most CPU time.
    """

    def __init__(self, root: int, dump: Callable[[int], bytes | str] | None = None) -> None:
        self._dump = dump or _py_spy
        self._root = root
        self._seen: dict[int, list[bool]] = {}
        self._names: dict[int, str] = {}
        self._refused = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="powerband-gil", daemon=True)

    def __enter__(self) -> "GilWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=2 * _DUMP_S)

    def notes(self) -> tuple[str, ...]:
        """One line a process, or why there is none."""
        lines = [
            f"interpreter lock of {self._names[pid]} (pid {pid}): held in {sum(seen)} of {len(seen)} looks of py-spy"
            for pid, seen in self._seen.items()
        ]
        return tuple(lines) or (f"interpreter locks were not read: {self._refused or 'no Python process was found'}",)

    def _look(self) -> None:
        asked = _busiest(self._root)
        while asked and not self._over.wait(_EVERY_S):
            for pid in list(asked):
                found = self._dump(pid)
                if isinstance(found, str):
                    self._refused = found
                    asked.remove(pid)
                    continue
                self._names.setdefault(pid, process_name(pid))
                self._seen.setdefault(pid, []).append(any(thread.owns_gil for thread in _threads.decode(found)))


def _busiest(root: int) -> list[int]:
    """The process and those below it, by the CPU time they have spent."""
    spent = []
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(root)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                spent.append((times.user + times.system, one.pid))
    return [pid for _, pid in sorted(spent, reverse=True)[:_MOST_PROCESSES]]


def _py_spy(pid: int) -> bytes | str:
    """Threads of a process as JSON, or why not."""
    program = shutil.which("py-spy")
    if program is None:
        return "py-spy is not installed (pip install py-spy)"
    try:
        done = subprocess.run(
            [program, "dump", "--json", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            timeout=_DUMP_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy: {error}"
    if done.returncode or not done.stdout.lstrip().startswith(b"["):
        return f"py-spy: {' '.join(done.stderr.decode(errors='replace').split())[:120] or 'no answer'}"
    return done.stdout
