"""What a model is by its content: a hash that changes when a single weight does."""

import functools
import hashlib
import subprocess
from pathlib import Path

from powerband.records.errors import RequestError

# Of a model's folder, what decides its answers: weights, configs, tokenizer and chat template.
_DECIDES = ("*.safetensors", "*.bin", "*.gguf", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")


def hash_model(model: str) -> str | None:
    """SHA-256 over the model's bytes; None where ``model`` is no file or folder here (a hub id, a server).

    The whole of every file is read, since a changed layer can lie anywhere: about a second per GB, once a process.
    """
    path = Path(model)
    try:
        if path.is_file():
            return _hash_file(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
        if not path.is_dir():
            return None
        found = sorted({file for pattern in _DECIDES for file in path.glob(pattern) if file.is_file()})
        whole = hashlib.sha256()
        for file in found:
            stat = file.stat()
            whole.update(f"{file.name} {_hash_file(str(file.resolve()), stat.st_size, stat.st_mtime_ns)}\n".encode())
        return whole.hexdigest() if found else None
    except OSError as error:
        raise RequestError(f"cannot read {model}: {error.strerror or error}", hint="check the model's files") from None


@functools.lru_cache(maxsize=4096)
def _hash_file(path: str, size: int, mtime_ns: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def package_versions(python: str, packages: tuple[str, ...]) -> str | None:
    """The versions of packages as another interpreter has them; None where it lacks one or does not answer."""
    code = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    try:
        told = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip() or None
