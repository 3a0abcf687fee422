"""The driver's library in a process of its own, by a stand-in for the package that binds it."""

import os
from pathlib import Path

import pytest

from powerband.probes.nvml_apart import NvmlApart
from powerband.records.value import Missing

PYNVML = """
import os
from types import SimpleNamespace
class NVMLError(Exception): pass
def nvmlInit():
    if os.environ.get("NO_DRIVER"): raise NVMLError("Driver Not Loaded")
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}"
def nvmlDeviceGetName(handle): return "NVIDIA H200"
def nvmlDeviceGetUtilizationRates(handle):
    if os.path.exists(os.environ["DIE"]): os.kill(os.getpid(), 11)
    return SimpleNamespace(gpu=37, memory=12)
"""


@pytest.fixture
def die(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file whose presence makes the driver's library die; the package itself is put before any other."""
    (tmp_path / "pynvml.py").write_text(PYNVML)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("DIE", str(tmp_path / "die"))
    return tmp_path / "die"


def test_samples_come_through_the_process(die: Path) -> None:
    probe = NvmlApart()
    assert probe.missing is None
    (first,) = probe.sample(5)
    (second,) = probe.sample(7)
    assert (first.t_ns, first.index, first.busy_ratio, second.t_ns) == (5, 1, 0.37, 7)
    assert isinstance(first.power_w, Missing)  # the stand-in does not know it
    probe.close()
    probe.close()
    assert probe.sample(9) == ()


def test_a_library_that_dies_takes_only_its_samples(die: Path) -> None:
    probe = NvmlApart()
    assert len(probe.sample(0)) == 1
    die.touch()
    assert probe.sample(1) == ()
    assert "ended with -11" in probe.died
    assert probe.sample(2) == ()


def test_no_driver_is_a_reason(die: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_DRIVER", "1")
    probe = NvmlApart()
    assert probe.missing is not None
    assert "Driver Not Loaded" in probe.missing.missing
    assert probe.sample(0) == ()
