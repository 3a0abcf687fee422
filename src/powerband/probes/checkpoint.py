"""Reading a model: a folder with config.json, or a .gguf file."""

from pathlib import Path

from powerband.probes.config_model import model_from_config, read_config
from powerband.probes.gguf_model import read_gguf_model
from powerband.records.errors import RequestError
from powerband.records.model import ModelSpec


def read_model(model: str) -> ModelSpec:
    """The model at ``model``: a folder with config.json (weights optional), a config.json, or a .gguf file.

    Raises RequestError for what is none of these, and for what cannot be read as a language model.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _read_folder(path)
    if path.is_file():
        if path.suffix == ".json":
            return model_from_config(path.parent.name or path.stem, read_config(path), str(path))
        return read_gguf_model(path)
    raise RequestError(f"no model at {model!r}", hint="name a folder with config.json, or a .gguf file")


def _read_folder(folder: Path) -> ModelSpec:
    config = folder / "config.json"
    if config.is_file():
        return model_from_config(folder.resolve().name, read_config(config), str(config))
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1 or (files and "-00001-of-" in files[0].name):
        return read_gguf_model(files[0])
    found = f"{len(files)} .gguf files" if files else "no config.json and no .gguf file"
    raise RequestError(f"{folder} holds {found}", hint="name one .gguf file" if files else "is the download complete?")
