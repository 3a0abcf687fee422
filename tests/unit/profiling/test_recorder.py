"""Which steps are recorded and what that costs, on a stand-in for torch whose modules run hooks as torch's do."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from powerband.cli.profile import split_command
from powerband.profiling.attach import describe_cost, diagnose_recording, profile
from powerband.profiling.recorder import Recorder
from powerband.records.errors import RequestError


class Handle:
    def __init__(self, hooks: list[Any], hook: Any) -> None:
        self._hooks, self._hook = hooks, hook
        hooks.append(hook)

    def remove(self) -> None:
        self._hooks.remove(self._hook)


ALL_BEFORE: list[Any] = []
ALL_AFTER: list[Any] = []


class Module:
    """Calls global and own hooks around ``forward``, as torch.nn.Module does."""

    def __init__(self, *inner: "Module", fails: bool = False) -> None:
        self._inner, self._fails = inner, fails
        self.before: list[Any] = []
        self.after: list[Any] = []

    def __call__(self) -> None:
        for hook in [*ALL_BEFORE, *self.before]:
            hook(self, ())
        try:
            for module in self._inner:
                module()
            if self._fails:
                raise ValueError("a bad input")
        finally:
            for hook in [*ALL_AFTER, *self.after]:
                hook(self, (), None)

    def register_forward_pre_hook(self, hook: Any) -> Handle:
        return Handle(self.before, hook)

    def register_forward_hook(self, hook: Any, *, always_call: bool) -> Handle:
        assert always_call
        return Handle(self.after, hook)


class Layer(Module):
    pass


class Profiler:
    """Writes a trace of the marks made between start and stop."""

    marks: list[tuple[str, float, float]]
    running: "Profiler | None" = None

    def __init__(self, *, activities: list[str], with_stack: bool) -> None:
        assert activities == ["cpu"]
        self.marks = []

    def start(self) -> None:
        Profiler.running = self

    def stop(self) -> None:
        Profiler.running = None

    def export_chrome_trace(self, path: str) -> None:
        rows = [
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start * 1e6, "dur": (end - start) * 1e6}
            for name, start, end in self.marks
            for cat, name in (("user_annotation", name), ("cpu_op", "aten::mm"))
        ]
        Path(path).write_text(json.dumps({"traceEvents": rows}))


class Mark:
    def __init__(self, name: str) -> None:
        self._name, self._start = name, 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if Profiler.running is not None:
            Profiler.running.marks.append((self._name, self._start, time.perf_counter()))


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch: Any = ModuleType("torch")
    torch.__version__ = "2.0-stand-in"
    torch.cuda = SimpleNamespace(is_available=lambda: False)
    hooks = SimpleNamespace(
        register_module_forward_pre_hook=lambda hook: Handle(ALL_BEFORE, hook),
        register_module_forward_hook=lambda hook, always_call: Handle(ALL_AFTER, hook),
    )
    torch.nn = SimpleNamespace(modules=SimpleNamespace(module=hooks))
    activity = SimpleNamespace(CPU="cpu", CUDA="cuda")
    torch.profiler = SimpleNamespace(ProfilerActivity=activity, profile=Profiler, record_function=Mark)
    monkeypatch.setitem(sys.modules, "torch", torch)
    yield
    assert not ALL_BEFORE
    assert not ALL_AFTER


def test_outermost_calls_are_the_steps_and_inner_modules_keep_no_hook(tmp_path: Path) -> None:
    inner = Layer(Layer())
    model = Module(inner)
    with profile(steps=3, warm_up=4, out=tmp_path / "t.json") as recorded:
        for _ in range(12):
            model()
            assert not inner.before
    assert recorded.summary["steps_seen"] == 12
    assert recorded.summary["steps_recorded"] == 3
    assert recorded.summary["module"] == "Module"
    assert not model.before
    names = [e["name"] for e in json.loads(recorded.trace.read_text())["traceEvents"] if e["cat"] == "user_annotation"]
    assert names == ["powerband step 0", "powerband step 1", "powerband step 2"]
    assert any("3 steps recorded of 12 (Module); the median step" in note for note in recorded.diagnosis.notes)


def test_a_block_that_ends_early_keeps_what_was_recorded(tmp_path: Path) -> None:
    model = Module()
    with profile(steps=50, warm_up=1, out=tmp_path / "t.json") as recorded:
        for _ in range(4):
            model()
    assert recorded.summary["steps_recorded"] == 3
    assert recorded.diagnosis.window_s > 0


def test_a_step_that_fails_is_a_step_and_the_trace_is_written(tmp_path: Path) -> None:
    recorded = profile(steps=5, warm_up=0, out=tmp_path / "t.json")
    with contextlib.suppress(ValueError), recorded:
        Module()()
        Module(fails=True)()
    assert recorded.summary["steps_recorded"] == 1 + 1
    assert recorded.trace.is_file()


def test_the_program_may_name_its_steps(tmp_path: Path) -> None:
    with profile(steps=2, warm_up=2, out=tmp_path / "t.json") as recorded:
        for _ in range(6):
            Module()()
            Module()()
            recorded.step()
    assert recorded.summary["module"] == "steps named by the program"
    assert recorded.summary["steps_recorded"] == 2


def test_nothing_recorded_says_why(tmp_path: Path) -> None:
    with profile(steps=2, warm_up=9, out=tmp_path / "t.json") as recorded:
        Module()()
    with pytest.raises(RequestError, match="1 steps were seen and none was recorded") as caught:
        _ = recorded.diagnosis
    assert "warm-up" in caught.value.hint
    with profile(out=tmp_path / "u.json") as recorded:
        pass
    with pytest.raises(RequestError) as caught:
        _ = recorded.diagnosis
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" in caught.value.hint


def test_a_profiler_that_fails_leaves_the_program_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Profiler) -> None:
        raise RuntimeError("CUPTI is busy")

    monkeypatch.setattr(Profiler, "start", broken)
    with profile(warm_up=1, out=tmp_path / "t.json") as recorded:
        for _ in range(5):
            Module()()
    with pytest.raises(RequestError, match="CUPTI is busy"):
        _ = recorded.diagnosis


def test_senseless_counts_are_refused() -> None:
    for steps, warm_up in ((0, 5), (5, -1)):
        with pytest.raises(RequestError):
            profile(steps=steps, warm_up=warm_up)


def test_cost_is_the_ratio_of_medians() -> None:
    summary = {"steps_recorded": 3, "steps_seen": 9, "module": "M", "plain_step_s": 0.010, "recorded_step_s": 0.015}
    summary["cuda"] = True
    said = "the median step takes 15 ms recorded and 10 ms unrecorded (1.50x): gaps between kernels are longer"
    assert said in describe_cost(summary)
    assert "time between operators" in describe_cost({**summary, "cuda": False})
    assert "within the noise" in describe_cost({**summary, "recorded_step_s": 0.008})
    assert "too few steps" in describe_cost({**summary, "plain_step_s": None})


def test_a_recorder_without_a_program_is_harmless(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t.json")
    recorder.stop()
    assert recorder.summary()["steps_seen"] == 0


def test_a_trace_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    summary = {"failure": "", "trace": str(tmp_path / "t.json"), "cuda": False, "steps_seen": 1}
    with pytest.raises(RequestError, match="holds no traceEvents"):
        diagnose_recording(summary)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["s.py", "--x"], (sys.executable, [], ["s.py", "--x"])),
        (["python3.11", "s.py"], ("python3.11", [], ["s.py"])),
        (["/bin/python", "-u", "-W", "e", "-m", "mod", "-v"], ("/bin/python", ["-u", "-W", "e"], ["-m", "mod", "-v"])),
        (["python", "-Xdev", "-c", "pass"], ("python", ["-Xdev"], ["-c", "pass"])),
    ],
)  # fmt: skip
def test_the_interpreter_and_its_options_are_told_from_the_program(
    command: list[str], expected: tuple[str, list[str], list[str]]
) -> None:
    assert split_command(command) == expected


@pytest.mark.parametrize(
    "command", [["ls"], ["python"], ["python", "-u"], ["python", "-m"], ["python", "--wrong", "s"]]
)
def test_what_is_no_python_program_is_refused(command: list[str]) -> None:
    with pytest.raises(RequestError):
        split_command(command)
