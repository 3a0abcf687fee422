"""Run a quantisation in a child process: estimate, watch, and give the result its name only when it is whole."""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from powerband.engines.process import ServerProcess, read_tail, start_process
from powerband.probes.gguf import read_gguf
from powerband.quantize.calibration import write_samples
from powerband.quantize.methods import GGUF_TYPES, NEEDS_IMATRIX, Job
from powerband.quantize.resized import WIDE
from powerband.quantize.shapes import GROUPS, group_size
from powerband.quantize.texts import Sample
from powerband.records.errors import EngineError, MachineError, RequestError
from powerband.records.model import ModelSpec
from powerband.records.quantisation import CalibrationSet, Effort, QuantCard
from powerband.records.units import format_bytes
from powerband.records.value import Record
from powerband.stores.files import sync

CARD = "quantisation.json"
_UNFINISHED = ".unfinished"  # in the hidden folder's name, so that nothing takes it for a model
_LOCK = "held"
_RESUMED = ("converted.gguf", "converted.json", "imatrix.gguf")  # what a tool that resumes goes on from
LESS_MEMORY = "fewer or shorter samples (--samples, --sequence-tokens), or a machine with more memory"
_WORKER = Path(__file__).parent / "tools" / "worker.py"
_LOOK_S = 0.2
_TOLD_S = 5.0  # its guard tells the exit code a moment after the child is gone, later on a busy machine
_RESERVE_BYTES = 256 << 20  # of memory left to the machine; below it the child is ended before the kernel chooses
_COUNTED = re.compile(r"(?:\[\s*(\d+)/\s*(\d+)\]|\((\d+)/(\d+)\)|\b(\d+)/(\d+) \[)")


class Progress(Record):
    """How far a job is: the stage, the tool's own count where it prints one, and what it took so far."""

    stage: str
    done: int
    total: int
    elapsed_s: float
    rss_bytes: int


class Order(Record):
    """Everything a run needs to know beside the job itself."""

    model: str
    spec: ModelSpec
    out: Path
    python: str
    expected: Effort
    command: str
    threads: int = 0
    sequence_tokens: int = 512
    memory_limit_bytes: int | None = None


def work_folder(out: Path) -> Path:
    """Beside the output, so that the last step is a rename within one file system."""
    return out.parent / f".{out.name}{_UNFINISHED}"


def check_place(out: Path, expected: Effort) -> None:
    """Refuse an output that exists, a place that cannot be written, and a disk that is too small, before any work."""
    if out.exists():
        raise RequestError(f"{out} exists already", hint="choose another --out: nothing is overwritten")
    parent = out.parent
    if not parent.is_dir():
        raise RequestError(f"no folder {parent}", hint="make it first, or choose another --out")
    if not os.access(parent, os.W_OK):
        raise MachineError(f"cannot write to {parent}", hint="choose another --out")
    free = shutil.disk_usage(parent).free
    if free < expected.disk_bytes:
        raise MachineError(
            f"disk: {format_bytes(expected.disk_bytes)} wanted at {parent}, {format_bytes(free)} free",
            hint="free some, or choose another --out",
        )


def quantise(
    job: Job,
    order: Order,
    samples: Sequence[Sample],
    calibration: CalibrationSet | None,
    on_progress: Callable[[Progress], None] | None = None,
) -> QuantCard:
    """Run ``job`` and return its card, written beside the model. Whatever goes wrong, nothing stands under ``out``.

    Raises MachineError for no disk or memory, RequestError for a missing tool, EngineError where the tool fails.
    """
    work = work_folder(order.out)
    with _claim(work):
        return _quantise(job, order, samples, calibration, work, on_progress)


@contextlib.contextmanager
def _claim(work: Path) -> Iterator[None]:
    """Hold the work folder for one run alone; the system lets go of it however that run ends."""
    try:
        work.mkdir(exist_ok=True)
        held = os.open(work / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise MachineError(f"cannot write {work}: {error.strerror}", hint="choose another --out") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise RequestError(
            f"another run is making {work.parent / work.name[1:].removesuffix(_UNFINISHED)}",
            hint="wait for it, or choose another --out",
        ) from None
    try:
        yield
    finally:
        os.close(held)


def _quantise(
    job: Job,
    order: Order,
    samples: Sequence[Sample],
    calibration: CalibrationSet | None,
    work: Path,
    on_progress: Callable[[Progress], None] | None,
) -> QuantCard:
    _prepare(job, order, samples, work)
    began = time.monotonic()
    try:
        process = start_process(
            [order.python, "-I", str(_WORKER), str(work / "job.json")], log=work / "tool.log", name=job.tool.name
        )
        try:
            peak = _watch(process, order, work, on_progress)
        finally:
            process.stop()
        _raise_failure(process, job, order, work)
        card = _card(job, order, calibration, work, time.monotonic() - began, peak)
        _finish(card, order.out, work)
    except BaseException:
        _clear(job, work)
        raise
    return card


def _prepare(job: Job, order: Order, samples: Sequence[Sample], work: Path) -> None:
    kept = (_LOCK, *_RESUMED) if job.tool.resumes else (_LOCK,)
    try:
        for path in work.iterdir():
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if samples:
            write_samples(samples, work / "calibration.jsonl")
        (work / "job.json").write_text(json.dumps(_described(job, order, work)), encoding="utf-8")
    except OSError as error:
        raise MachineError(f"cannot write {work}: {error.strerror}", hint="choose another --out") from None


def _described(job: Job, order: Order, work: Path) -> dict[str, Any]:
    kind = job.format.removeprefix("gguf:") if job.method.name == "gguf" else ""
    return {
        "script": job.tool.script, "method": job.method.name, "model": str(Path(order.model).resolve())
        if Path(order.model).exists() else order.model,
        "options": job.options, "threads": order.threads, "sequence_tokens": order.sequence_tokens,
        "group": group_size(order.spec) or GROUPS[-1], "gguf_type": kind, "gguf_number": GGUF_TYPES.get(kind, 0),
        "needs_matrix": kind in NEEDS_IMATRIX, "requantise": order.spec.weight_dtype not in WIDE,
        "name": _plain_name(order.spec.name), "log": str((work / "tool.log").resolve()),
    }  # fmt: skip


def _plain_name(name: str) -> str:
    stem = name.removesuffix(".gguf").rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem) or "model"


def _watch(process: ServerProcess, order: Order, work: Path, on_progress: Callable[[Progress], None] | None) -> int:
    """Wait for the child, looking at its memory; returns the most it took. Ends it before the machine has none left."""
    began, peak = time.monotonic(), 0
    while process.alive():
        rss = tree_bytes(process.pid)
        peak = max(peak, rss)
        _check_memory(rss, order)
        if on_progress is not None:
            on_progress(_progress(work, time.monotonic() - began, rss))
        time.sleep(_LOOK_S)
    until = time.monotonic() + _TOLD_S
    while process.exit_code() is None and time.monotonic() < until:
        time.sleep(0.01)
    return peak


def _check_memory(rss: int, order: Order) -> None:
    if order.memory_limit_bytes is not None and rss > order.memory_limit_bytes:
        raise MachineError(
            f"out of memory: the quantiser took {format_bytes(rss)}, --memory-limit is"
            f" {format_bytes(order.memory_limit_bytes)}",
            hint=LESS_MEMORY,
        )
    left = psutil.virtual_memory().available
    if left < _RESERVE_BYTES and rss > left:
        raise MachineError(
            f"out of memory: the quantiser took {format_bytes(rss)}, {format_bytes(left)} are left", hint=LESS_MEMORY
        )


def tree_bytes(root: int) -> int:
    """Resident memory of a process and everything below it."""
    total = 0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(root)
        for one in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += one.memory_info().rss
    return total


def _progress(work: Path, elapsed_s: float, rss: int) -> Progress:
    stage, done, total = "start", 0, 0
    lines = read_tail(work / "progress.jsonl", 1)
    if lines:
        with contextlib.suppress(ValueError):
            entry = json.loads(lines[0])
            stage, done, total = str(entry["stage"]), int(entry["done"]), int(entry["total"])
    if not total:
        for line in reversed(read_tail(work / "tool.log", 5)):
            found = _COUNTED.findall(line)
            if found:
                numbers = [int(number) for number in found[0] if number]
                done, total = numbers[0], numbers[1]
                break
    return Progress(stage=stage, done=done, total=total, elapsed_s=elapsed_s, rss_bytes=rss)


def _raise_failure(process: ServerProcess, job: Job, order: Order, work: Path) -> None:
    """Nothing where the child ended well; else the error in words, with the last lines of its log."""
    code = process.exit_code()
    if code == 0 and (work / "result.json").is_file():
        return
    failure: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        failure = json.loads((work / "failure.json").read_text(encoding="utf-8"))
    tail, what = process.log_tail(12), str(failure.get("error", "")).removeprefix("Refused: ")
    if code == 4:
        module = failure.get("module") or job.tool.module
        raise RequestError(
            f"{order.python} has no module {module}, which {job.tool.name} needs",
            hint=f"{job.tool.get}; or name an interpreter that has it with --python",
        )
    if code == 7:
        raise RequestError(f"{job.tool.name}: {what}", hint="see powerband quantize MODEL --plan for what is possible")
    if code in (5, -9, 137):
        raise MachineError(
            f"out of memory in {job.tool.name}" + (f": {what}" if what else ": it was killed"),
            hint=LESS_MEMORY,
        )
    if code == 6 or "no space left" in " ".join([what, *tail]).lower():
        raise MachineError(
            f"disk full while {job.tool.name} wrote to {order.out.parent}", hint="free some, or choose another --out"
        )
    ended = f"with code {code}" if code is not None and code >= 0 else f"by signal {-code}" if code else "unexpectedly"
    raise EngineError(
        f"{job.tool.name} ended {ended}" + (f": {what}" if what else ""), hint="the last lines it wrote:", log_tail=tail
    )


def _card(
    job: Job, order: Order, calibration: CalibrationSet | None, work: Path, seconds: float, peak: int
) -> QuantCard:
    result = json.loads((work / "result.json").read_text(encoding="utf-8"))
    model = work / "model"
    files = {str(path.relative_to(model)): path.stat().st_size for path in sorted(model.rglob("*")) if path.is_file()}
    weights = [name for name in files if name.endswith((".safetensors", ".gguf", ".bin", ".npz"))]
    if not weights:
        raise EngineError(f"{job.tool.name} wrote no weights", hint="its files: " + (", ".join(files) or "none"))
    tensors, skipped = _stored_types(model, weights) if job.tool.name == "llama.cpp" else ({}, ())
    return QuantCard(
        method=job.asked,
        format=job.format,
        tool=job.tool.name,
        versions=result["versions"],
        source_model=order.model,
        source_quantisation=order.spec.weight_dtype,
        source_bytes=order.spec.weight_bytes,
        output_bytes=sum(files[name] for name in weights),
        options=job.options,
        command=order.command,
        seconds=round(seconds, 2),
        cpu_seconds=float(result["cpu_s"]),
        peak_memory_bytes=max(peak, int(result["peak_kib"]) << 10),
        expected=order.expected,
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {format_bytes(psutil.virtual_memory().total)}",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        skipped_modules=tuple(sorted({*result["skipped"], *skipped})),
        tensors=tensors or {name: count for name, count in result["tensors"].items() if count},
        calibration=calibration,
        notes=tuple(result["notes"]),
        files=files,
        content_sha256=_content_hash(model, weights),
    )


def _stored_types(model: Path, names: Sequence[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Tensors by type and the matrices left wide, by the file itself rather than by what the tool says of it."""
    counts: Counter[str] = Counter()
    wide = []
    for name in names:
        if name.endswith(".gguf"):
            for tensor in read_gguf(model / name).tensors:
                counts[tensor.kind.name] += 1
                if len(tensor.shape) > 1 and tensor.kind.name in WIDE:
                    wide.append(tensor.name)
    return dict(counts), tuple(wide)


def _content_hash(model: Path, names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(names):
        with (model / name).open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _finish(card: QuantCard, out: Path, work: Path) -> None:
    """Card, sync, rename: before the rename nothing has the model's name, after it all of it is on the disk."""
    model = work / "model"
    try:
        (model / CARD).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")
        for path in model.rglob("*"):
            if path.is_file():
                sync(path)
        sync(model)
        model.rename(out)
        sync(out.parent)
    except OSError as error:
        raise MachineError(f"cannot put the model at {out}: {error.strerror}", hint="choose another --out") from None
    shutil.rmtree(work, ignore_errors=True)


def _clear(job: Job, work: Path) -> None:
    """After a failure: all goes, but what a tool that resumes can go on from."""
    kept = [work / name for name in _RESUMED] if job.tool.resumes else []
    if any(path.is_file() for path in kept):
        for path in work.iterdir():
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        return
    shutil.rmtree(work, ignore_errors=True)


def read_card(folder: Path) -> QuantCard:
    """The card of a quantised model. Raises RequestError where there is none or it cannot be read."""
    try:
        return msgspec.json.decode((folder / CARD).read_bytes(), type=QuantCard)
    except OSError as error:
        raise RequestError(f"no {CARD} in {folder}: {error.strerror}", hint="made by powerband quantize") from None
    except msgspec.DecodeError as error:
        raise RequestError(f"{folder / CARD} is no card: {error}", hint="was it edited?") from None
