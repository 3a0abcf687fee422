"""Record a few steps of a PyTorch program: find what a step is, let it warm up, profile some, say what that cost.

A step is one call of the outermost torch.nn.Module (a forward pass: ``generate`` makes one for each token), or what the
program says by calling ``step()``. This file needs only the standard library and torch, since it also runs as a script
inside the interpreter of the program that is profiled, where powerband need not be installed:

    python recorder.py SETTINGS.json script.py arguments...
    python recorder.py SETTINGS.json -m module arguments...
"""

import contextlib
import json
import os
import runpy
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = "powerband step"
# Discovery hooks see every module call and cost time in each: they go once this many outermost calls were seen.
_DISCOVER_CALLS = 2
# Of the steps before the recording, the first pay for first use and are not timed.
_UNTIMED = 2


class Recorder:
    """Waits ``warm_up`` steps, records ``steps`` of them into ``trace``, and times those before, in and after.

    ``warm_up=0`` records from the start. Nothing is raised from inside the program's steps: what goes wrong with the
    profiler is kept in ``failure`` and the program goes on.
    """

    def __init__(self, trace: Path, *, steps: int = 20, warm_up: int = 5, stack: bool = False) -> None:
        self.trace, self.steps, self.warm_up, self._stack = trace, steps, warm_up, stack
        self.failure = ""
        self.module = ""
        self.recorded = 0
        self._done = False
        self._seen = 0
        self._last_s: float | None = None
        self._plain_s: list[float] = []
        self._recorded_s: list[float] = []
        self._profiler: Any = None
        self._mark: Any = None
        self._hooks: list[Any] = []
        self._by_hand = False
        self._lock = threading.RLock()
        self._depth = threading.local()

    # What the program's steps call.

    def step(self) -> None:
        """The program's own word that a step has ended; from the first call on, modules are not watched."""
        with self._lock:
            if not self._by_hand:
                self._by_hand = True
                self._unhook()
                self.module = "steps named by the program"
            self._end()
            self._begin()

    def start(self) -> None:
        """Watch modules from now on; with no warm-up, record at once."""
        import torch

        self._torch = torch
        module = torch.nn.modules.module
        self._hooks = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]
        if self.warm_up == 0:
            self._start_profiler()

    def stop(self) -> None:
        """End the recording, if it still goes on, and write the trace; safe to call twice."""
        with self._lock:
            self._unhook()
            self._finish()

    def summary(self) -> dict[str, Any]:
        """What was recorded and what recording cost, in plain values."""
        cuda = bool(self._torch.cuda.is_available()) if hasattr(self, "_torch") else False
        return {
            "trace": str(self.trace),
            "module": self.module,
            "steps_seen": self._seen,
            "steps_recorded": self.recorded,
            "plain_step_s": statistics.median(self._plain_s) if self._plain_s else None,
            "recorded_step_s": statistics.median(self._recorded_s) if self._recorded_s else None,
            "torch": str(self._torch.__version__) if hasattr(self, "_torch") else "",
            "cuda": cuda,
            "failure": self.failure,
        }

    def _enter(self, module: Any, *_: Any) -> None:
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        if depth == 0 and not self._by_hand:
            with self._lock:
                self.module = self.module or type(module).__name__
                self._begin()

    def _leave(self, module: Any, *_: Any) -> None:
        depth = self._depth.value = max(getattr(self._depth, "value", 1) - 1, 0)
        if depth == 0 and not self._by_hand:
            with self._lock:
                self._end()
                if self._seen == _DISCOVER_CALLS:
                    self._watch_only(module)

    def _watch_only(self, module: Any) -> None:
        """Hooks on the outermost module alone: the inner ones are left as they were."""
        self._unhook()
        self.module = type(module).__name__
        self._hooks = [
            module.register_forward_pre_hook(self._enter),
            module.register_forward_hook(self._leave, always_call=True),
        ]

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # From here on the lock is held.

    def _begin(self) -> None:
        now = time.perf_counter()
        # From begin to begin: what the program does between two steps belongs to the step.
        if self._last_s is not None and self._seen > _UNTIMED:
            (self._recorded_s if self._profiler is not None else self._plain_s).append(now - self._last_s)
        self._last_s = now
        if not self._done and self._profiler is None and self._seen >= self.warm_up:
            self._start_profiler()
            self._last_s = None  # starting took time that is no step's
        elif self._profiler is not None and self.steps and self.recorded >= self.steps:
            self._finish()
            self._last_s = None
        if self._profiler is not None:
            self._mark = self._torch.profiler.record_function(f"{MARK} {self.recorded}")
            self._mark.__enter__()

    def _end(self) -> None:
        self._seen += 1
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
            self.recorded += 1

    def _start_profiler(self) -> None:
        profiler = self._torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        try:
            self._settle()
            self._profiler = profiler.profile(activities=activities, with_stack=self._stack)
            self._profiler.start()
        except Exception as error:  # noqa: BLE001 - the program must go on whatever its profiler does
            self._profiler, self._done, self.failure = None, True, f"the profiler did not start: {error}"

    def _finish(self) -> None:
        if self._profiler is None:
            return
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        try:
            self._settle()
            self._profiler.stop()
            self.trace.parent.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(self.trace))
        except Exception as error:  # noqa: BLE001 - as above
            self.failure = f"the trace was not written: {error}"
        self._profiler, self._done = None, True

    def _settle(self) -> None:
        """Let the device finish what was launched, so that no step is cut in two."""
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Record while the block runs; the trace is written whatever ends it."""
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


def main(argv: list[str]) -> int:
    """Run a program with the recorder attached; what was recorded goes into the file that the settings name."""
    settings = json.loads(Path(argv[1]).read_text(encoding="utf-8"))
    try:
        import torch  # noqa: F401 - asked here, so that its absence is told before the program runs
    except ImportError as error:
        Path(settings["summary"]).write_text(json.dumps({"failure": f"no torch in {sys.executable}: {error}"}))
        return 2
    recorder = Recorder(
        Path(settings["trace"]), steps=settings["steps"], warm_up=settings["warm_up"], stack=settings["stack"]
    )
    owner, code = os.getpid(), 0
    try:
        with recording(recorder):
            _run(argv[2:])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        if isinstance(ended.code, str):
            sys.stderr.write(ended.code + "\n")
    except KeyboardInterrupt:
        code = 130
    finally:
        if os.getpid() == owner:  # a forked child that ends here has recorded nothing of its own
            Path(settings["summary"]).write_text(json.dumps(recorder.summary()), encoding="utf-8")
    return code


def _run(command: list[str]) -> None:
    """As the interpreter would: a script's folder, or this one for a module, comes first on the path."""
    if command[0] == "-m":
        sys.argv, sys.path[0] = command[1:], str(Path.cwd())
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    elif command[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *command[2:]], ""
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = command, str(Path(command[0]).resolve().parent)
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
