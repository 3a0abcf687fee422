"""What a client process takes from the system before the schedule begins."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
from powerband.load.process import _make_room_for_sockets
_make_room_for_sockets()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], open("/proc/self/status").read().split("FDSize:")[1].split()[0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the size of the table is told by Linux's /proc")
def test_the_table_of_open_files_has_its_size_before_the_first_request() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096:
        pytest.skip("fewer than 4096 open files are allowed here")
    said = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["4096", "4096"]
