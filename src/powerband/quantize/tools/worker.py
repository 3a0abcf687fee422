"""The child that quantises: run by path, ``python -I worker.py JOB.json``, in whichever interpreter has the tool.

Standard library alone, since powerband need not be installed there. It loads the tool's script that the job names from
its own folder, tells how far it is in ``progress.jsonl`` and writes what was done to ``result.json``. Exit codes: 0
done, 3 the tool failed, 4 a module is missing, 5 no memory, 6 no disk, 7 the tool refuses this model.
"""

import contextlib
import errno
import importlib.metadata
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

FAILED, MISSING, NO_MEMORY, NO_DISK, REFUSED = 3, 4, 5, 6, 7
_MEMORY_WORDS = ("out of memory", "bad_alloc", "cannot allocate memory", "defaultcpuallocator", "failed to allocate")


class Refused(Exception):
    """The tool cannot take this model or option; the message says why."""


class Steps:
    """What a tool script is given: the folders, the calibration, and ways to say how far it is."""

    def __init__(self, job: dict[str, Any], work: Path) -> None:
        self.job, self.work = job, work
        self.model = str(job["model"])
        self.out = work / "model"
        self.options: dict[str, Any] = dict(job["options"])
        self.threads = int(job["threads"])
        self.group = int(self.options.get("group", job["group"]))  # weights that share a scale
        self.notes: list[str] = []
        self.skipped: list[str] = []
        self.tensors: dict[str, int] = {}
        self._began = time.monotonic()

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """Say that ``name`` is under way; ``done`` of ``total`` where it counts."""
        entry = {"stage": name, "done": done, "total": total, "s": round(time.monotonic() - self._began, 2)}
        with (self.work / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def samples(self) -> list[dict[str, Any]]:
        path = self.work / "calibration.jsonl"
        if not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]

    def texts(self, tokenizer: Any) -> list[str]:
        """The calibration as text: a conversation through the model's own chat template where it has one."""
        return [_render(sample, tokenizer) for sample in self.samples()]

    def refuse(self, why: str) -> Refused:
        return Refused(why)


def _render(sample: dict[str, Any], tokenizer: Any) -> str:
    if "messages" not in sample:
        return str(sample["text"])
    if getattr(tokenizer, "chat_template", None):
        return str(tokenizer.apply_chat_template(sample["messages"], tokenize=False))
    return "\n".join(message["content"] for message in sample["messages"])


def versions(names: list[str]) -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def load_script(name: str) -> Any:
    place = Path(name) if name.endswith(".py") else Path(__file__).resolve().parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"powerband_{name}", place)
    if spec is None or spec.loader is None:
        raise SystemExit(f"no script {place}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exit_code(error: BaseException) -> int:
    """What went wrong, as a code that the parent puts into words."""
    text = f"{type(error).__name__}: {error}".lower()
    if isinstance(error, Refused):
        return REFUSED
    if isinstance(error, ModuleNotFoundError):
        return MISSING
    if isinstance(error, MemoryError) or any(word in text for word in _MEMORY_WORDS):
        return NO_MEMORY
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return NO_DISK if full or "no space left" in text or "os error 28" in text else FAILED


def main(path: str) -> int:
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    work = Path(path).resolve().parent
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900", encoding="ascii")  # if memory ends, end this, not the shell
    os.environ.setdefault("HF_HUB_OFFLINE", "1" if Path(job["model"]).exists() else "0")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if job["threads"]:
        os.environ["OMP_NUM_THREADS"] = str(job["threads"])
    steps = Steps(job, work)
    try:
        steps.out.mkdir(exist_ok=True)
        script = load_script(job["script"])
        script.run(steps)
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises is put into words by the parent
        code = exit_code(error)
        traceback.print_exc()
        failure = {
            "error": f"{type(error).__name__}: {error}"[:2000],
            "code": code,
            "module": getattr(error, "name", ""),
        }
        with contextlib.suppress(OSError):
            (work / "failure.json").write_text(json.dumps(failure), encoding="utf-8")
        return code
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    result = {
        "cpu_s": round(sum(one.ru_utime + one.ru_stime for one in used), 2),
        "versions": versions(script.PACKAGES),
        "skipped": steps.skipped,
        "tensors": steps.tensors,
        "notes": steps.notes,
        "peak_kib": max(one.ru_maxrss for one in used),
    }
    (work / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
