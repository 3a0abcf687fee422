"""Which matrix sizes a format or kernel can take, from the model's dimensions alone."""

from collections.abc import Iterator

from powerband.records.model import ModelSpec

GROUPS = (128, 64, 32)  # inputs that share a scale; the sizes every 4-bit kernel knows
_MARLIN_INPUTS, _MARLIN_OUTPUTS = 128, 64  # vLLM, marlin_utils.py: GPTQ_MARLIN_MIN_THREAD_K and _N
_K_BLOCK = 256  # ggml super-block
_GROUP = 128


def inputs_of(model: ModelSpec, tp: int = 1) -> Iterator[tuple[str, float]]:
    """Inputs of each kind of linear layer on one rank; those split by rows (o, down) have a share of their inputs."""
    if model.hidden:
        yield "hidden size", model.hidden
    attention = model.heads * model.head_dim
    if attention and model.family != "mla":
        yield "attention output", attention / tp
    if model.intermediate:
        yield "MLP size", model.intermediate / tp
    if model.expert_intermediate:
        yield "expert size", model.expert_intermediate / tp


def outputs_of(model: ModelSpec, tp: int = 1) -> Iterator[tuple[str, float]]:
    """Outputs of each kind of linear layer on one rank; those split by columns (q, gate, up) have a share."""
    if model.hidden:
        yield "hidden size", model.hidden
    if model.heads and model.head_dim:
        yield "query heads", model.heads * model.head_dim / tp
    if model.intermediate:
        yield "MLP size", model.intermediate / tp


def odd_size(model: ModelSpec, rule: str, tp: int = 1) -> str:
    """The size that breaks ``rule``, in words; empty where none does. Rules: group_ranks, marlin, k_quant."""
    if rule == "group_ranks":
        return next((_words(name, size, tp) for name, size in inputs_of(model, tp) if tp > 1 and size % _GROUP), "")
    if rule == "marlin":
        odd = [_words(name, size, tp) for name, size in inputs_of(model, tp) if size % _MARLIN_INPUTS]
        odd += [_words(name, size, tp) for name, size in outputs_of(model, tp) if size % _MARLIN_OUTPUTS]
        return odd[0] if odd else ""
    if rule == "k_quant":
        return next((_words(name, size, 1) for name, size in inputs_of(model) if size % _K_BLOCK), "")
    raise ValueError(f"no shape rule {rule!r}")


def group_size(model: ModelSpec, tp: int = 1) -> int | None:
    """The widest group that divides every layer's inputs on each of ``tp`` ranks; None where none does."""
    sizes = [size for _, size in inputs_of(model, tp)]
    return next((group for group in GROUPS if all(size % group == 0 for size in sizes)), None)


def _words(name: str, size: float, tp: int) -> str:
    share = f" on each of {tp} ranks" if tp > 1 else ""
    return f"{name} {size:g}{share}"
