"""A Transformers model and its tokenizer: weights as stored, or random ones from config.json alone."""

import sys
import time
from pathlib import Path
from typing import Any

from powerband.records.config import Value
from powerband.records.errors import RequestError


def load_model(model: str, knobs: dict[str, Value]) -> tuple[Any, Any]:
    """(model, tokenizer) on the device that ``knobs`` name, without an end of sequence of its own.

    ``load_format=dummy`` makes random weights: speed and memory do not depend on their values. Raises RequestError for
    a model or a setting that cannot be loaded.
    """
    import torch
    import transformers

    device = choose_device(str(knobs.get("device", "auto")), torch)
    dtype = choose_dtype(str(knobs.get("dtype", "auto")), device, torch)
    if threads := int(knobs.get("num_threads", 0)):
        torch.set_num_threads(threads)
    path = Path(model)
    place, file = (str(path.parent), path.name) if path.suffix == ".gguf" else (model, None)
    attention = str(knobs.get("attn_implementation", "auto"))
    options: dict[str, Any] = {"dtype": dtype} | ({} if attention == "auto" else {"attn_implementation": attention})
    where: dict[str, Any] = {} if file is None else {"gguf_file": file}
    began_s = time.monotonic()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, **where)
        if knobs.get("load_format", "auto") == "dummy":
            loaded = _dummy(transformers, torch, place, where, options, device)
        else:
            loaded = transformers.AutoModelForCausalLM.from_pretrained(place, **where, **options).to(device)
    except (OSError, ValueError, ImportError) as error:
        hint = "give a folder with config.json, tokenizer and weights (or load_format=dummy), or a .gguf file"
        raise RequestError(f"transformers cannot load {model!r}: {_first_line(error)}", hint=hint) from error
    loaded.eval()
    ends = loaded.generation_config.eos_token_id
    loaded.powerband_stop_ids = frozenset([ends] if isinstance(ends, int) else ends or [])
    # What ends an answer is decided by the job, which may have to ignore it.
    loaded.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    count = sum(p.numel() for p in loaded.parameters())
    sys.stderr.write(f"loaded {count:,} parameters as {dtype} on {device} in {time.monotonic() - began_s:.1f} s\n")
    return loaded, tokenizer


def _dummy(
    transformers: Any, torch: Any, place: str, where: dict[str, Any], options: dict[str, Any], device: str
) -> Any:
    config = transformers.AutoConfig.from_pretrained(place, **where)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, **options).to(device)


def choose_device(asked: str, torch: Any) -> str:
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise RequestError("device=cuda, and torch sees no CUDA device", hint="use device=cpu or device=auto")
    return asked


def choose_dtype(asked: str, device: str, torch: Any) -> Any:
    """``auto``: bfloat16 on a card; float32 on a CPU, where PyTorch's own default is the fastest that runs anywhere."""
    if asked == "auto":
        return torch.float32 if device == "cpu" else torch.bfloat16
    return getattr(torch, asked)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
