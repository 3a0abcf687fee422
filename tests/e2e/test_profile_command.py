"""``powerband profile`` from the command line, on a stand-in for torch that lies on the program's path."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# What recorder.py uses of torch: hooks on modules, and a profiler that writes the marks it saw as Kineto does.
TORCH = """
import json, time, types
__version__ = "2.0-stand-in"
cuda = types.SimpleNamespace(is_available=lambda: False)
_before, _after, _marks, _on = [], [], [], []

class _Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook
        hooks.append(hook)
    def remove(self):
        self.hooks.remove(self.hook)

class Module:
    def __init__(self):
        self.before, self.after = [], []
    def __call__(self):
        for hook in [*_before, *self.before]:
            hook(self, ())
        time.sleep(0.001)
        for hook in [*_after, *self.after]:
            hook(self, (), None)
    def register_forward_pre_hook(self, hook):
        return _Handle(self.before, hook)
    def register_forward_hook(self, hook, *, always_call):
        return _Handle(self.after, hook)

class _Mark:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        self.start = time.perf_counter()
    def __exit__(self, *_):
        if _on:
            _marks.append((self.name, self.start * 1e6, (time.perf_counter() - self.start) * 1e6))

class _Profile:
    def __init__(self, *, activities, with_stack): pass
    def start(self): _on.append(1)
    def stop(self): _on.clear()
    def export_chrome_trace(self, path):
        import gzip
        rows = [{"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
                for mark, ts, dur in _marks for cat, name in (("user_annotation", mark), ("cpu_op", "aten::mm"))]
        text = json.dumps({"traceEvents": rows}).encode()
        open(path, "wb").write(gzip.compress(text) if path.endswith(".gz") else text)

module = types.SimpleNamespace(
    register_module_forward_pre_hook=lambda hook: _Handle(_before, hook),
    register_module_forward_hook=lambda hook, always_call: _Handle(_after, hook))
nn = types.SimpleNamespace(Module=Module, modules=types.SimpleNamespace(module=module))
profiler = types.SimpleNamespace(
    ProfilerActivity=types.SimpleNamespace(CPU=0, CUDA=1), profile=_Profile, record_function=_Mark)
"""
SCRIPT = """
import sys, torch
assert __name__ == "__main__"
print("arguments", sys.argv[1:])
model = torch.nn.Module()
for _ in range(int(sys.argv[1])):
    model()
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "path" / "torch").mkdir(parents=True)
    (tmp_path / "path" / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def profile(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(folder / "path"), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "powerband", "profile", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_script_runs_as_it_would_and_its_steps_are_diagnosed(folder: Path) -> None:
    kept = ("--json", "--steps", "3", "--warm-up", "2", "--out", "kept.json")
    done = profile(folder, *kept, "--", sys.executable, "script.py", "9", "0", "--steps")
    assert done.returncode == 0, done.stderr
    assert "arguments ['9', '0', '--steps']" in done.stderr  # stdout is for the answer
    found: dict[str, Any] = json.loads(done.stdout)
    assert sum(part["seconds"] for part in found["breakdown"]) == pytest.approx(found["window_s"])
    assert found["notes"][0].startswith("3 steps recorded of 9 (Module)")
    assert len(json.loads((folder / "kept.json").read_text())["traceEvents"]) == 6


def test_a_module_is_found_where_the_interpreter_would_find_it(folder: Path) -> None:
    done = profile(folder, "--json", "--warm-up", "1", "--", sys.executable, "-m", "script", "5", "0")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["notes"][0].startswith("4 steps recorded of 5")


def test_a_program_that_fails_after_its_steps_is_diagnosed_all_the_same(folder: Path) -> None:
    done = profile(folder, "--json", "--warm-up", "1", "--", sys.executable, "script.py", "5", "3")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        (("script.py", "0", "0"), 2, "error: 0 steps were seen and none was recorded"),
        (("script.py", "0", "3"), 3, "error: the program ended with code 3 and no step was recorded"),
        (("none.py",), 3, "error: the program ended with code 1 and no step was recorded"),
    ],
)
def test_what_was_not_recorded_is_said_in_two_lines(
    folder: Path, program: tuple[str, ...], code: int, says: str
) -> None:
    done = profile(folder, "--", sys.executable, *program)
    assert done.returncode == code
    assert says in done.stderr
    assert "hint: " in done.stderr.splitlines()[-1]


def test_an_interpreter_without_torch_is_named(folder: Path) -> None:
    (folder / "path" / "torch" / "__init__.py").write_text("raise ImportError('none here')")
    done = profile(folder, "--", sys.executable, "script.py", "5", "0")
    assert done.returncode == 3
    assert f"error: no torch in {sys.executable}: none here" in done.stderr
