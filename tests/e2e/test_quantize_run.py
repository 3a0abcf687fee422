"""A quantisation ends whole or not at all: the real child behind the guard, with tools that do what tools do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from powerband.quantize.methods import Job, Method, Tool
from powerband.quantize.run import Order, Progress, quantise, read_card, work_folder
from powerband.quantize.texts import Sample
from powerband.records.errors import EngineError, MachineError, RequestError
from powerband.records.model import LayerGroup, ModelSpec
from powerband.records.quantisation import Effort
from powerband.records.value import Interval

GOOD = """
PACKAGES = ["pytest"]
def run(steps):
    steps.stage("quantise", 1, 2)
    (steps.out / "config.json").write_text("{}")
    (steps.out / "model.safetensors").write_bytes(b"0123456789" * len(steps.samples()))
    steps.tensors["int4"] = 3
    steps.skipped.append("lm_head")
    steps.notes.append("done by hand")
"""


def spec() -> ModelSpec:
    return ModelSpec(
        name="org/tiny model", architecture="x", layers=(LayerGroup(count=1, kind="attention"),), hidden=64, heads=1,
        vocab=8, parameters=100, active_parameters=100, weight_bytes=200, weight_dtype="bf16", basis="computed",
        context_tokens=64,
    )  # fmt: skip


def effort() -> Effort:
    return Effort(
        seconds=1, interval_s=Interval(low=0, high=3), memory_bytes=1, output_bytes=1, disk_bytes=1, basis="assumed",
        why="a test",
    )  # fmt: skip


def job(tmp_path: Path, body: str, *, resumes: bool = False) -> Job:
    script = tmp_path / "tool.py"
    script.write_text(body, encoding="utf-8")
    tool = Tool(name="hand", module="hand", script=str(script), get="pip install hand", resumes=resumes)
    return Job(method=Method(name="gptq", title="t", formats={"hand": "gptq"}), tool=tool, format="gptq", options={})


def order(tmp_path: Path, **more: object) -> Order:
    fields: dict[str, object] = {
        "model": str(tmp_path), "spec": spec(), "out": tmp_path / "out", "python": sys.executable,
        "expected": effort(), "command": "powerband quantize ...",
    }  # fmt: skip
    return Order(**{**fields, **more})  # type: ignore[arg-type]


def nothing_is_left(tmp_path: Path) -> None:
    assert not (tmp_path / "out").exists()
    assert not work_folder(tmp_path / "out").exists()


def test_what_is_whole_appears_with_its_card(tmp_path: Path) -> None:
    seen: list[Progress] = []
    samples = [Sample(text="a", kind="prose"), Sample(text="b", kind="prose")]
    card = quantise(job(tmp_path, GOOD), order(tmp_path), samples, None, seen.append)
    assert read_card(tmp_path / "out") == card
    assert card.output_bytes == 20
    assert card.files == {"config.json": 2, "model.safetensors": 20}
    assert card.skipped_modules == ("lm_head",)
    assert card.tensors == {"int4": 3}
    assert "pytest" in card.versions
    assert card.peak_memory_bytes > 1 << 20
    assert card.cpu_seconds is not None
    assert 0 < card.cpu_seconds < 30
    # printf 01234567890123456789 | sha256sum
    assert card.content_sha256 == "4e76ad8354461437c04ef9b9b242540b6406d782ff2c3fb28afdab5b423f88fe"
    assert not work_folder(tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        ("import hand_that_is_not_there\n", RequestError, "no module hand_that_is_not_there"),
        ("def run(steps):\n    raise MemoryError('no room')\n", MachineError, "out of memory"),
        ("def run(steps):\n    raise RuntimeError('CUDA out of memory. Tried')\n", MachineError, "out of memory"),
        (
            "def run(steps):\n    import errno\n    raise OSError(errno.ENOSPC, 'No space left')\n",
            MachineError,
            "disk full",
        ),
        ("def run(steps):\n    raise steps.refuse('cannot take this')\n", RequestError, "cannot take this"),
        ("def run(steps):\n    raise ValueError('odd shape')\n", EngineError, "odd shape"),
        ("def run(steps):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n", MachineError, "killed"),
        (
            "def run(steps):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)\n",
            EngineError,
            "signal 11",
        ),
        ("PACKAGES = []\ndef run(steps):\n    pass\n", EngineError, "no weights"),
    ],
    ids=["module", "memory", "cuda", "disk", "refused", "failed", "killed", "crashed", "nothing written"],
)
def test_what_fails_says_why_and_leaves_nothing(tmp_path: Path, body: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        quantise(job(tmp_path, body), order(tmp_path), [], None)
    nothing_is_left(tmp_path)


def test_a_full_disk_for_real(tmp_path: Path) -> None:
    """/dev/full answers every write as a full disk does."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    body = "def run(steps):\n    with open('/dev/full', 'wb') as file:\n        file.write(b'0' * (1 << 20))\n"
    with pytest.raises(MachineError, match="disk full"):
        quantise(job(tmp_path, body), order(tmp_path), [], None)
    nothing_is_left(tmp_path)


def test_a_tool_above_its_memory_limit_is_ended(tmp_path: Path) -> None:
    body = "import time\ndef run(steps):\n    held = bytearray(b'1') * (300 << 20)\n    time.sleep(60)\n"
    began = time.monotonic()
    with pytest.raises(MachineError, match="--memory-limit"):
        quantise(job(tmp_path, body), order(tmp_path, memory_limit_bytes=200 << 20), [], None)
    assert time.monotonic() - began < 20
    nothing_is_left(tmp_path)


def test_a_second_run_to_the_same_place_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    """Seen: a second run cleared the folder that the first was writing to."""
    refused: list[str] = []

    def meanwhile(_: Progress) -> None:
        if not refused:
            with pytest.raises(RequestError) as caught:
                quantise(job(tmp_path, GOOD), order(tmp_path), [], None)
            refused.append(caught.value.message)

    body = GOOD.replace("def run(steps):", "def run(steps):\n    import time\n    time.sleep(1)")
    card = quantise(job(tmp_path, body), order(tmp_path), [Sample(text="a", kind="prose")], None, meanwhile)
    assert refused == [f"another run is making {tmp_path / 'out'}"]
    assert card.output_bytes == 10
    assert not work_folder(tmp_path / "out").exists()


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises((EngineError, MachineError, RequestError)):
        quantise(job(tmp_path, GOOD), order(tmp_path, python=str(tmp_path / "python")), [], None)
    nothing_is_left(tmp_path)


def test_a_tool_that_resumes_keeps_its_first_step_when_it_fails(tmp_path: Path) -> None:
    body = """
PACKAGES = []
def run(steps):
    done = steps.work / "converted.gguf"
    if done.is_file():
        (steps.out / "m.gguf").write_bytes(done.read_bytes())
        return
    done.write_bytes(b"step one")
    raise RuntimeError("stopped half way")
"""
    with pytest.raises(EngineError, match="half way"):
        quantise(job(tmp_path, body, resumes=True), order(tmp_path), [], None)
    assert not (tmp_path / "out").exists()
    assert (work_folder(tmp_path / "out") / "converted.gguf").read_bytes() == b"step one"
    card = quantise(job(tmp_path, body, resumes=True), order(tmp_path), [], None)
    assert card.output_bytes == len(b"step one")
    assert not work_folder(tmp_path / "out").exists()


SLOW = """
import time
PACKAGES = []
def run(steps):
    (steps.out / "config.json").write_text("{}")
    (steps.out / "model.safetensors").write_bytes(b"x" * 1000)
    steps.stage("save")
    time.sleep(120)
"""
PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_quantize_run as t
place = Path({place!r})
t.quantise(t.job(place, t.SLOW), t.order(place), [], None)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_nothing_that_looks_whole_is_left_when_powerband_is_gone(tmp_path: Path, number: signal.Signals) -> None:
    """Killed while all files are written and the last is not yet closed: no model, and no tool goes on."""
    script = PARENT.format(tests=str(Path(__file__).parent), place=str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    work = work_folder(tmp_path / "out")
    try:
        until = time.monotonic() + 30
        while not (work / "model" / "model.safetensors").is_file():
            assert time.monotonic() < until, "the tool never wrote"
            time.sleep(0.05)
        below = psutil.Process(parent.pid).children(recursive=True)
        os.kill(parent.pid, number)
        parent.wait(timeout=30)
        _, alive = psutil.wait_procs(below, timeout=20)
        assert not alive
    finally:
        parent.kill()
        parent.wait(timeout=10)
    assert not (tmp_path / "out").exists()
    if number == signal.SIGINT:
        assert not work.exists()
    else:
        card = quantise(job(tmp_path, GOOD), order(tmp_path), [Sample(text="a", kind="prose")], None)
        assert card.output_bytes == 10  # the next try starts clean
