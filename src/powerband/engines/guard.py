"""The process between powerband and an engine: when powerband is gone, however it went, the engine goes too.

Run by its path with ``python -I -S guard.py FD GRACE_S COMMAND ...``, so it uses the standard library alone. ``FD`` is
one end of a socket whose other end powerband holds. The guard writes ``pid N`` to it when the engine runs and
``exit N`` when it has ended; when the other end closes (powerband stopped it, died, or was killed), it ends the
engine's whole tree: SIGTERM, then after ``GRACE_S`` SIGKILL. It is a subreaper, so a grandchild whose parent died
becomes its own child and cannot get away. If the guard itself is killed, the kernel kills the engine (PDEATHSIG).
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LOOK_S = 0.5  # how often to look whether powerband lives where the socket cannot tell (a fork of it holds the end)
_KILL_S = 5.0


def _prctl(option: int, value: int) -> None:
    # Only Linux has it; elsewhere the socket alone must do.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Living processes below ``root``, from /proc; a zombie does not count."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, look = [], [root]
    while look:
        below = children.get(look.pop(), [])
        found += below
        look += below
    return found


def _spawn(command: list[str], channel: int) -> int:
    """Start the engine in its own session; it dies with the guard."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(channel)
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(127)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _reap(engine: int) -> tuple[int | None, bool]:
    """Collect every ended child: the engine's exit code when it is among them (negative: the signal), and whether any
    child is left. Orphans become our children, so none left means that the whole tree is gone.
    """
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return code, True
            if pid == engine:
                code = os.waitstatus_to_exitcode(status)
    return code, False


def _signal_tree(engine: int, number: int) -> None:
    """Send to the engine's group and to every descendant."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(engine, number)
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _end_tree(engine: int, grace_s: float) -> None:
    """Return when every process below us has ended and been collected: memory and ports are free then."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_S)):
        until = time.monotonic() + patience_s
        _signal_tree(engine, number)
        while _reap(engine)[1]:
            if time.monotonic() > until:
                break
            time.sleep(0.01)
            if number == signal.SIGKILL:
                _signal_tree(engine, number)  # one that was forked meanwhile
        else:
            return


def _watch(channel: socket.socket, wake: int, engine: int, parent: int, stop: list[int]) -> int | None:
    """Wait until the engine ends (its exit code) or powerband is gone or asks for the end (None)."""
    while True:
        readable, _, _ = select.select([channel.fileno(), wake], [], [], _LOOK_S)
        if wake in readable:
            os.read(wake, 4096)
        code, _ = _reap(engine)
        if code is not None:
            return code
        if stop or os.getppid() != parent:
            return None
        if channel.fileno() in readable:
            try:
                data = channel.recv(64)
            except OSError:
                return None
            if not data:
                return None


def main(argv: list[str]) -> NoReturn:
    parent = os.getppid()
    channel, grace_s, command = socket.socket(fileno=int(argv[0])), float(argv[1]), argv[2:]
    channel.set_inheritable(False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    stop: list[int] = []
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda which, _: stop.append(which))
    engine = _spawn(command, channel.fileno())
    with contextlib.suppress(OSError):
        channel.sendall(b"pid %d\n" % engine)
    code = _watch(channel, reader, engine, parent, stop)
    if code is not None:
        with contextlib.suppress(OSError):
            channel.sendall(b"exit %d\n" % code)
    _end_tree(engine, grace_s)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
