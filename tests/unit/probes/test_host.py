"""The host probe on processes whose CPU use is known by their own account."""

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from powerband.probes.host import HostProbe, serving_pid
from powerband.records.value import Missing

_BURN = "import sys, time\nwhile time.process_time() < {seconds}: pass\nprint('done', flush=True); time.sleep(60)"
_FAMILY = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}])"


def _burner(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def _wait_done(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "done"


@pytest.mark.parametrize("grandchild", [False, True])
def test_engine_cpu_is_that_of_its_whole_tree(grandchild: bool) -> None:
    code = _BURN.format(seconds=0.4)
    process = _burner(_FAMILY.format(inner=code) if grandchild else code)
    try:
        probe = HostProbe(process.pid)
        _wait_done(process)
        sample = probe.sample(9)
        assert sample.t_ns == 9
        assert isinstance(sample.engine_cores, float)
        # 0.4 s of CPU by its own clock; start-up before the probe's first look does not count, ticks are 10 ms.
        assert 0.25 <= sample.engine_cores * sample.interval_s <= 0.5
        assert isinstance(sample.engine_rss_bytes, float)
        assert sample.engine_rss_bytes > 4 << 20
        assert sample.client_cores * sample.interval_s < 0.2
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.communicate()


def test_our_own_work_is_the_clients() -> None:
    probe = HostProbe(None)
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    sample = probe.sample(0)
    assert 0.25 <= sample.client_cores * sample.interval_s <= 0.45
    assert isinstance(sample.engine_cores, Missing)
    assert isinstance(sample.engine_switches_per_s, Missing)


def test_somebody_elses_work_is_others() -> None:
    # Started by a shell that has gone, it is no descendant of ours.
    code = _BURN.format(seconds=0.4).replace("time.sleep(60)", "pass")
    probe = HostProbe(None)
    subprocess.run(
        ["/bin/sh", "-c", 'exec 3>&1; "$0" -c "$1" >/dev/null 2>&1 & sleep 0.01', sys.executable, code],
        check=True,
        timeout=10,
    )
    time.sleep(0.9)
    sample = probe.sample(0)
    assert sample.other_cores * sample.interval_s >= 0.2


def test_an_ended_engine_is_missing_and_no_error() -> None:
    process = _burner("pass")
    process.communicate(timeout=10)
    sample = HostProbe(process.pid).sample(0)
    assert isinstance(sample.engine_cores, Missing)
    assert "ended" in sample.engine_cores.missing


def test_cores_are_those_we_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert HostProbe(None).sample(0).cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


_SERVE = """
import os, socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
if {forks} and os.fork():
    server.close()
    os.wait()
else:
    print(server.getsockname()[1], flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("forks", [False, True])
def test_the_process_that_serves_a_port_is_found_with_the_parent_that_started_it(forks: bool) -> None:
    code = _SERVE.format(forks=forks)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert serving_pid(f"http://127.0.0.1:{port}") == process.pid
        assert serving_pid(f"http://192.0.2.1:{port}") is None  # TEST-NET-1: another machine's address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert serving_pid(f"http://127.0.0.1:{port}") is None
    assert serving_pid("http://127.0.0.1") is None


def test_a_server_of_our_own_process_group_is_not_taken_for_us() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert serving_pid(f"http://localhost:{server.getsockname()[1]}") == os.getpid()
