"""Engines end with powerband, however it ends: no orphan, no stranger measured."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from powerband.engines import guard
from powerband.engines.process import ServerProcess, free_port, start_process, take_port, wait_ready
from powerband.records.errors import EngineError, MachineError, RequestError

# A server that starts a child, which starts a child in a session of its own and ignores SIGTERM; it writes the pids.
FAMILY = """
import os, subprocess, sys, time, http.server
from pathlib import Path
folder, depth = Path(sys.argv[1]), int(sys.argv[2])
if depth:
    subprocess.Popen([sys.executable, __file__, str(folder), str(depth - 1), "0"], start_new_session=depth == 1)
else:
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder.joinpath(f"pid{depth}").write_text(str(os.getpid()))
port = int(sys.argv[3])
if port:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
        def log_message(self, *a): pass
    http.server.HTTPServer(("127.0.0.1", port), Page).serve_forever()
time.sleep(600)
"""


def until(condition: Callable[[], bool], timeout_s: float = 15.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def read_pids(folder: Path, count: int = 3) -> list[int]:
    assert until(lambda: len([p for p in folder.glob("pid*") if p.read_text()]) == count)
    return [int(path.read_text()) for path in sorted(folder.glob("pid*"))]


@pytest.fixture
def family(tmp_path: Path) -> Path:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    return script


def start_family(script: Path, port: int = 0, *, grace_s: float = 0.3) -> ServerProcess:
    command = [sys.executable, str(script), str(script.parent), "2", str(port)]
    return start_process(command, log=script.parent / "engine.log", name="family", grace_s=grace_s)


def test_stop_ends_grandchildren_that_ignore_it_and_left_the_session(family: Path) -> None:
    process = start_family(family)
    pids = read_pids(family.parent)
    assert process.alive()
    assert os.getsid(process.pid) != os.getsid(0)
    process.stop()
    assert all(gone(pid) for pid in pids)
    process.stop()
    assert not process.alive()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_tree_ends_with_its_parent(family: Path, number: signal.Signals) -> None:
    parent = f"""
        import sys, time
        from pathlib import Path
        from powerband.engines.process import start_process
        process = start_process([sys.executable, {str(family)!r}, {str(family.parent)!r}, "2", "0"],
                                log=Path({str(family.parent)!r}) / "engine.log", name="family", grace_s=0.3)
        print(process.pid, flush=True)
        time.sleep(600)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    pids = read_pids(family.parent)
    guards = psutil.Process(owner.pid).children()
    owner.send_signal(number)
    owner.communicate(timeout=20)
    assert until(lambda: all(gone(pid) for pid in pids))
    assert until(lambda: all(gone(one.pid) for one in guards))


def test_a_fork_of_the_parent_that_lives_on_does_not_keep_the_engine(family: Path) -> None:
    parent = f"""
        import os, sys, time
        from pathlib import Path
        from powerband.engines.process import start_process
        process = start_process([sys.executable, {str(family)!r}, {str(family.parent)!r}, "2", "0"],
                                log=Path({str(family.parent)!r}) / "engine.log", name="family", grace_s=0.3)
        if os.fork() == 0:  # holds a copy of the socket to the guard
            time.sleep(20)
            os._exit(0)
        time.sleep(600)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    pids = read_pids(family.parent)
    fork = [one for one in psutil.Process(owner.pid).children() if "guard.py" not in " ".join(one.cmdline())]
    assert len(fork) == 1
    owner.kill()
    owner.wait(10)
    try:
        assert until(lambda: all(gone(pid) for pid in pids))
    finally:
        fork[0].kill()


def test_a_killed_guard_takes_the_engine_along_and_stop_ends_its_children(family: Path) -> None:
    process = start_family(family)
    pids = read_pids(family.parent)
    psutil.Process(process.pid).parent().kill()
    assert until(lambda: gone(process.pid))  # PDEATHSIG
    assert not process.alive()
    process.stop()
    assert until(lambda: gone(pids[1]))  # the child in the engine's group
    os.kill(pids[0], signal.SIGKILL)  # the one in a session of its own is out of reach without the guard


def test_ctrl_c_of_the_terminal_does_not_reach_the_engine(family: Path) -> None:
    process = start_family(family)
    try:
        read_pids(family.parent)
        assert os.getpgid(process.pid) == process.pid
        assert os.getpgid(process.pid) not in (os.getpgid(0), os.getpgid(os.getppid()))
        guard_pid = psutil.Process(process.pid).ppid()
        os.kill(guard_pid, signal.SIGINT)  # even the guard is not stopped by it
        time.sleep(0.1)
        assert process.alive()
    finally:
        process.stop()


def test_ctrl_c_during_stop_still_ends_everything(family: Path) -> None:
    parent = f"""
        import sys
        from pathlib import Path
        from powerband.engines.process import start_process
        process = start_process([sys.executable, {str(family)!r}, {str(family.parent)!r}, "2", "0"],
                                log=Path({str(family.parent)!r}) / "engine.log", name="family", grace_s=1.0)
        sys.stdin.readline()
        print("stopping", flush=True)
        try:
            process.stop()
        except KeyboardInterrupt:
            print("gone", process.alive(), flush=True)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    pids = read_pids(family.parent)
    owner.stdin.write("now\n")
    owner.stdin.flush()
    assert owner.stdout.readline() == "stopping\n"
    for _ in range(2):  # the family ignores SIGTERM for a second: both come in the middle of it
        time.sleep(0.2)
        owner.send_signal(signal.SIGINT)
    assert owner.communicate(timeout=20)[0] == "gone False\n"
    assert all(gone(pid) for pid in pids)


def test_exit_code_and_log_of_this_start_only(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("a line of another start\n")
    process = start_process(
        [sys.executable, "-c", "print('first'); print('last'); raise SystemExit(7)"], log=log, name="x"
    )
    assert until(lambda: not process.alive())
    assert until(lambda: process.exit_code() == 7)
    assert process.log_tail() == ("first", "last")
    assert process.log_tail(1) == ("last",)
    process.stop()


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    process = start_process(["/no/such/program"], log=tmp_path / "log", name="x")
    with pytest.raises(EngineError, match="exit code 127") as raised:
        wait_ready(process, f"http://127.0.0.1:{free_port()}", 5.0, name="x")
    assert "cannot run /no/such/program" in raised.value.log_tail[0]


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(MachineError, match="cannot start x"):
        start_process(["true"], log=tmp_path / "log", name="x")


def test_ready_once_our_process_answers(family: Path) -> None:
    port = free_port()
    process = start_family(family, port)
    wait_ready(process, f"http://127.0.0.1:{port}", 20.0, name="family")
    assert process.owns_port(port)
    assert not process.owns_port(port + 1)
    process.stop()


def test_a_strangers_server_is_not_taken_for_ours(family: Path, tmp_path: Path) -> None:
    port = free_port()
    stranger = start_family(family, port)
    try:
        wait_ready(stranger, f"http://127.0.0.1:{port}", 20.0, name="family")
        ours = start_process([sys.executable, "-c", "import time; time.sleep(60)"], log=tmp_path / "log", name="ours")
        with pytest.raises(EngineError, match="is not the ours that was started"):
            wait_ready(ours, f"http://127.0.0.1:{port}", 5.0, name="ours")
        assert not ours.alive()
        assert stranger.alive()
    finally:
        stranger.stop()


def test_no_answer_in_time_stops_it(family: Path) -> None:
    process = start_family(family)
    with pytest.raises(EngineError, match=r"did not answer within 0\.3 s"):
        wait_ready(process, f"http://127.0.0.1:{free_port()}", 0.3, name="family")
    assert not process.alive()


def test_ports_taken_by_a_server_by_a_bound_socket_and_unusable_ones() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(RequestError, match="answers at"):
        take_port(server.getsockname()[1])
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(RequestError, match="is taken") as raised:
            take_port(bound.getsockname()[1])
        assert "0 takes a free one" in raised.value.hint
    with pytest.raises(RequestError, match="cannot be used"):
        take_port(70000)
    assert take_port(free_port()) > 0
    assert take_port(0) > 0


def test_a_port_in_time_wait_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first is left in TIME_WAIT
        client.recv(1)
        client.close()
    assert take_port(port) == port


def test_descendants_are_found_from_proc(family: Path) -> None:
    process = start_family(family)
    pids = read_pids(family.parent)
    assert sorted([process.pid, *guard.descendants(process.pid)]) == sorted(pids)
    process.stop()
