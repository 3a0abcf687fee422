"""Reading a model: a folder with config.json, a .gguf file, or an id on the Hugging Face hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from powerband.probes.config_model import decode_config, model_from_config, read_config
from powerband.probes.families import knows
from powerband.probes.gguf_model import read_gguf_model
from powerband.probes.hub import Hub, cached_folder, is_hub_id
from powerband.probes.safetensors import StoredTensor, read_folder
from powerband.probes.stored_model import model_from_headers, with_stored_weights
from powerband.records.errors import RequestError
from powerband.records.model import ModelSpec


def read_model(model: str) -> ModelSpec:
    """The model at ``model``: a folder with config.json (weights optional), a config.json, a .gguf file or a hub id.

    Weights come from headers where there are any (basis measured), else by closed form from the config (computed).
    Raises RequestError for what is none of these, and for what cannot be read as a language model.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _read_folder(path)
    if path.is_file():
        if path.suffix == ".json":
            return model_from_config(path.parent.name or path.stem, read_config(path), str(path))
        return read_gguf_model(path)
    if is_hub_id(model) and not model.startswith("."):
        folder = cached_folder(model)
        return _read_folder(folder, name=model) if folder else _read_hub(model)
    raise RequestError(f"no model at {model!r}", hint="name a folder with config.json, a .gguf file or a hub id")


def _read_folder(folder: Path, *, name: str = "") -> ModelSpec:
    config = folder / "config.json"
    if config.is_file():
        fields = read_config(config)
        return _combine(name or folder.resolve().name, fields, str(config), read_folder(folder))
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1 or (files and "-00001-of-" in files[0].name):
        return read_gguf_model(files[0])
    found = f"{len(files)} .gguf files" if files else "no config.json and no .gguf file"
    raise RequestError(f"{folder} holds {found}", hint="name one .gguf file" if files else "is the download complete?")


def _read_hub(model: str) -> ModelSpec:
    hub = Hub(model)
    fields = decode_config(hub.config(), f"{model}/config.json")
    return _combine(model, fields, f"{model}/config.json", hub.tensors())


def _combine(name: str, fields: dict[str, Any], source: str, tensors: Sequence[StoredTensor]) -> ModelSpec:
    spec = model_from_config(name, fields, source)
    if not tensors:
        return spec
    return with_stored_weights(spec, tensors) if knows(fields) else model_from_headers(name, tensors, spec)
