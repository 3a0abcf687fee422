"""Start a server as a child of ours, wait until it answers, and end it with everything it started."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from powerband.engines import guard
from powerband.probes.http import HttpError, read_page
from powerband.records.errors import EngineError, MachineError, RequestError

HOST = "127.0.0.1"
_TAIL_BYTES = 64 << 10


class ServerProcess:
    """A running child in its own session, behind a guard that ends it when we are gone."""

    def __init__(
        self, guard_process: subprocess.Popen[bytes], channel: socket.socket, log: Path, log_start: int, name: str
    ) -> None:
        self._guard, self._channel, self._name = guard_process, channel, name
        self.log, self._log_start = log, log_start  # what the log held before is another server's
        self._heard = b""
        self._stopped = False
        self.pid = self._read_pid()
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(self.pid)  # holds the start time, so that a reused pid is not taken for it

    def _read_pid(self) -> int:
        self._channel.settimeout(30.0)
        try:
            while b"\n" not in self._heard:
                data = self._channel.recv(256)
                if not data:
                    raise OSError("the guard process ended")
                self._heard += data
        except OSError as error:
            self.stop()
            raise MachineError(f"cannot start {self._name}: {error}") from None
        self._channel.setblocking(False)
        line, _, self._heard = self._heard.partition(b"\n")
        return int(line.split()[1])

    def exit_code(self) -> int | None:
        """The code it ended with by itself (negative: the signal); None while it lives or where we stopped it."""
        if not self._stopped:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                self._heard += self._channel.recv(256)
        if self._heard.startswith(b"exit ") and self._heard.endswith(b"\n"):
            return int(self._heard.split()[1])
        return None

    def alive(self) -> bool:
        """Whether the server itself runs (its guard tells within a moment when it ends)."""
        if self._stopped or self._process is None or self.exit_code() is not None:
            return False
        try:
            return bool(self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        return read_tail(self.log, lines, self._log_start)

    def owns_port(self, port: int) -> bool:
        """Whether it or one of its children listens on ``port``: never measure a stranger's server."""
        return any(port in _listening(pid) for pid in (self.pid, *guard.descendants(self.pid)))

    def stop(self) -> None:
        """End the whole tree and wait until it is gone; safe to call twice and under Ctrl-C."""
        if self._stopped:
            return
        self._stopped = True
        interrupted: KeyboardInterrupt | None = None
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)  # the guard sees the end of the stream and ends the tree
        while self._guard.poll() is None:
            try:
                self._guard.wait(timeout=60)
            except KeyboardInterrupt as error:
                interrupted = error  # the guard goes on; a second Ctrl-C must not leave an orphan either
            except subprocess.TimeoutExpired:
                self._guard.kill()
        self._kill_rest()
        with contextlib.suppress(OSError):
            self._heard += self._channel.recv(256)
        self._channel.close()
        if interrupted is not None:
            raise interrupted

    def _kill_rest(self) -> None:
        """Where the guard was killed from outside: whatever is left of the engine's group."""
        if getattr(self, "pid", 0) and self._guard.returncode != 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, 9)


def start_process(
    command: Sequence[str], *, log: Path, name: str, env: Mapping[str, str] | None = None, grace_s: float = 5.0
) -> ServerProcess:
    """Start ``command`` in its own session, its output appended to ``log``; raises MachineError where that fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), str(grace_s), *command]
    try:
        with log.open("ab") as output:
            log_start = output.tell()
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                pass_fds=(theirs.fileno(),), env={**os.environ, **(env or {})},
            )  # fmt: skip
    except OSError as error:
        ours.close()
        raise MachineError(f"cannot start {name}: {error.strerror or error}") from None
    finally:
        theirs.close()
    return ServerProcess(process, ours, log, log_start, name)


def free_port(host: str = HOST) -> int:
    """A port that nothing uses at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def take_port(port: int, host: str = HOST) -> int:
    """``port`` if it is free, a free one for 0; raises RequestError where it is taken or may not be used."""
    if port == 0:
        return free_port(host)
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        raise RequestError(
            f"port {port} is taken: {_who_listens(port)} answers at {host}:{port}",
            hint="stop it, or choose another port (0 takes a free one); to measure it as it is, use --engine openai",
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free to listen on
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            taken = getattr(error, "errno", None) == errno.EADDRINUSE
            raise RequestError(
                f"port {port} is taken" if taken else f"port {port} cannot be used: {error}",
                hint="choose another port; 0 takes a free one",
            ) from None
    return port


def _who_listens(port: int) -> str:
    """The process that listens on ``port``, as far as this user may see."""
    with contextlib.suppress(psutil.Error):
        for one in psutil.net_connections(kind="tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid is not None:
                return f"pid {one.pid} ({' '.join(psutil.Process(one.pid).cmdline())[:80] or 'nameless'})"
    return "something"


def wait_ready(process: ServerProcess, url: str, timeout_s: float, *, path: str = "/health", name: str) -> None:
    """Return when ``url + path`` says 200 and it is our process that listens there.

    Whatever else happens, the process is stopped before the error leaves: EngineError with the last log lines where it
    died or did not answer in time.
    """
    try:
        _poll_ready(process, url, path, timeout_s, name)
    except BaseException:
        process.stop()
        raise


def _poll_ready(process: ServerProcess, url: str, path: str, timeout_s: float, name: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    pause_s = 0.02
    while True:
        if not process.alive():
            time.sleep(0.05)  # its guard reports the code a moment later
            code = process.exit_code()
            how = "by a signal" if code is None else f"by signal {-code}" if code < 0 else f"with exit code {code}"
            raise EngineError(
                f"{name} died at start {how}", hint=f"its log: {process.log}", log_tail=process.log_tail()
            )
        if _answers(url + path):
            break
        if time.monotonic() >= deadline_s:
            raise EngineError(
                f"{name} did not answer within {timeout_s:g} s", hint=f"its log: {process.log}",
                log_tail=process.log_tail(),
            )  # fmt: skip
        time.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))
        pause_s = min(0.25, pause_s * 1.3)
    port = int(url.rsplit(":", 1)[1])
    if not process.owns_port(port):
        raise EngineError(
            f"what answers at {url} is not the {name} that was started", hint="choose another port; 0 takes a free one",
            log_tail=process.log_tail(),
        )  # fmt: skip


def _answers(url: str) -> bool:
    try:
        return read_page(url, timeout_s=2.0).status == 200
    except HttpError:
        return False


def _listening(pid: int) -> set[int]:
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.Error:
        return set()
    return {int(one.laddr.port) for one in connections if one.status == psutil.CONN_LISTEN and one.laddr}


def read_tail(log: Path, lines: int, start: int = 0) -> tuple[str, ...]:
    """The last lines of a log from byte ``start`` on, however long it is."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-lines:]
