"""From a config's quantization_config to the storage format of each tensor."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from powerband.probes.keys import Keys
from powerband.probes.tensors import Tensor
from powerband.records import weight_format as formats
from powerband.records.errors import unknown_name
from powerband.records.weight_format import WeightFormat

Rule = Callable[[Tensor], WeightFormat | None]


@dataclass(frozen=True)
class Scheme:
    """``format_of`` gives a tensor's format, None where it stays in the model's dtype."""

    name: str
    format_of: Rule


def read_scheme(keys: Keys) -> Scheme:
    """The scheme a config names; ``none`` where it names none. Raises RequestError for a method not known here."""
    section = keys.section("quantization_config", "quantization", "compression_config")
    if section is None:
        return Scheme("none", lambda tensor: None)
    method = section.text("quant_method") or ("modelopt" if section.has("quant_algo") else "")
    if not method and section.has("bits") and section.has("group_size"):
        method = "mlx"
    if method not in READERS:
        raise unknown_name(f"quantisation method in {keys.source}", method, READERS)
    if "MIXED_PRECISION" in section.text("quant_algo"):
        method = "mixed"
    rule = READERS[method](section)
    if keys.text("expert_dtype") == "fp4" and method == "fp8":  # DeepSeek V4 keeps its experts at 4 bits
        rule = _fp4_experts(rule)
    return Scheme(method, rule)


def _fp4_experts(rest: Rule) -> Rule:
    return lambda tensor: formats.MXFP4 if tensor.role == "experts" else rest(tensor)


def _fp8(section: Keys) -> Rule:
    block = section.items("weight_block_size")
    if not block:
        return _linear(formats.FP8_TENSOR, _ignored(section))
    return _linear(formats.FP8_BLOCK.replace(block_rows=int(block[0]), group=int(block[-1])), _ignored(section))


def _fbgemm(section: Keys) -> Rule:
    return _linear(formats.FP8_CHANNEL, _ignored(section))


def _gptq(section: Keys) -> Rule:
    kind = formats.gptq(section.optional("bits", default=4), max(int(section.number("group_size", default=128)), 0))
    return _linear(kind, _ignored(section), head=section.flag("lm_head"))


def _awq(section: Keys) -> Rule:
    kind = formats.awq(section.optional("bits", "w_bit", default=4), section.optional("group_size", "q_group_size"))
    return _linear(kind, _ignored(section))


def _bitsandbytes(section: Keys) -> Rule:
    if section.flag("load_in_8bit", "_load_in_8bit"):
        return _linear(formats.BNB_INT8, _ignored(section))
    double = section.flag("bnb_4bit_use_double_quant")
    return _linear(formats.BNB_NF4 if double else formats.BNB_NF4_SINGLE, _ignored(section))


def _mxfp4(section: Keys) -> Rule:
    """gpt-oss: the experts alone."""
    inner = _linear(formats.MXFP4, _ignored(section))
    return lambda tensor: inner(tensor) if tensor.role == "experts" else None


def _torchao(section: Keys) -> Rule:
    text = str(section.fields.get("quant_type") or "").lower()
    four = "int4" in text or "uint4" in text
    kind = formats.ao_int4() if four else formats.FP8_CHANNEL if "float8" in text else formats.AO_INT8
    return _linear(kind, _ignored(section))


def _mlx(section: Keys) -> Rule:
    kind = formats.mlx(section.count("bits"), section.count("group_size"))
    return lambda tensor: kind if tensor.inputs > 1 and not tensor.dtype else None


def _hqq(section: Keys) -> Rule:
    weights = section.section("quant_config")
    inner = (weights.section("weight_quant_params") if weights else None) or section
    kind = formats.awq(inner.optional("nbits", "bits", default=4), inner.optional("group_size", default=64))
    return _linear(kind.replace(name=f"hqq-int{kind.bits:g}", zero_bits=16), _ignored(section))


def _modelopt(section: Keys) -> Rule:
    algorithm = section.text("quant_algo").upper()
    return _linear(_modelopt_format(algorithm, section.optional("group_size", default=16)), _ignored(section))


def _modelopt_format(algorithm: str, group: int) -> WeightFormat:
    if "FP4" in algorithm:
        return formats.NVFP4.replace(group=group or 16)
    return formats.FP8_TENSOR


def _mixed(section: Keys) -> Rule:
    """Modelopt with an algorithm for each module; modules it does not name keep the outer method, or the dtype."""
    named = section.fields.get("quantized_layers")
    layers = {_plain(name): value for name, value in named.items()} if isinstance(named, dict) else {}
    rest = _fp8(section) if section.text("quant_method") == "fp8" else lambda tensor: None
    experts = section.text("moe_quant_algo")

    def rule(tensor: Tensor) -> WeightFormat | None:
        if not tensor.linear:
            return None
        for name in _lookups(tensor.name):
            entry = layers.get(name)
            if isinstance(entry, dict):
                return _modelopt_format(str(entry.get("quant_algo")).upper(), int(entry.get("group_size") or 16))
        if tensor.role == "experts" and experts:
            return _modelopt_format(experts.upper(), 16)
        return rest(tensor)

    return rule


def _compressed(section: Keys) -> Rule:
    """compressed-tensors: groups of modules, each with the format of its weights."""
    groups = section.section("config_groups")
    schemes: list[tuple[Sequence[Any], WeightFormat]] = []
    for name in groups.fields if groups else ():
        group = groups.section(name) if groups else None
        weights = group.section("weights") if group else None
        if group is not None and weights is not None:
            form = group.text("format") or section.text("format")
            schemes.append((group.items("targets"), _compressed_format(weights, form)))
    ignored = _ignored(section)

    def rule(tensor: Tensor) -> WeightFormat | None:
        if not tensor.linear or _matches(tensor.name, ignored):
            return None
        for targets, kind in schemes:
            if "Linear" in targets or not targets or _matches(tensor.name, targets):
                return kind
        return None

    return rule


def _compressed_format(weights: Keys, form: str) -> WeightFormat:
    bits, group = weights.optional("num_bits", default=8), int(weights.number("group_size", default=0))
    strategy = weights.text("strategy")
    if "mxfp4" in form:
        return formats.MXFP4
    if "nvfp4" in form or (weights.text("type") == "float" and bits == 4):
        return formats.NVFP4
    if bits >= 8:
        block = weights.items("block_structure")
        if strategy == "block" or block:
            rows, columns = (int(block[0]), int(block[1])) if len(block) == 2 else (128, 128)
            return formats.FP8_BLOCK.replace(block_rows=rows, group=columns)
        name = "fp8" if weights.text("type") == "float" else "int8"
        kind = formats.FP8_TENSOR if strategy == "tensor" else formats.INT8_CHANNEL
        return kind.replace(name=name)
    return formats.packed(bits, group, symmetric=weights.flag("symmetric", default=True))


def _linear(kind: WeightFormat, ignored: Sequence[Any], *, head: bool = False) -> Rule:
    def rule(tensor: Tensor) -> WeightFormat | None:
        wanted = tensor.linear or (head and tensor.role == "head")
        return kind if wanted and not _matches(tensor.name, ignored) else None

    return rule


def _ignored(section: Keys) -> list[Any]:
    return section.items(
        "modules_to_not_convert", "ignore", "ignored_layers", "llm_int8_skip_modules", "exclude_modules"
    )


def _plain(name: str) -> str:
    """A module name without the wrappers that differ between releases."""
    for wrapper in ("language_model.model.", "model.language_model.", "language_model.", "model."):
        if name.startswith(wrapper):
            name = name[len(wrapper) :]
    return name


def _lookups(name: str) -> Iterable[str]:
    """The name and each of its parents, as a config may list a whole module."""
    plain = _plain(name).replace(".experts.0.", ".experts.")
    parts = plain.split(".")
    for end in range(len(parts), 1, -1):
        yield ".".join(parts[:end])


def _matches(name: str, patterns: Sequence[Any]) -> bool:
    """Whether any pattern names the module, a parent of it, or a part of its path, by regex, glob or plain text."""
    plain = _plain(name)
    return any(_match_one(plain, pattern) for pattern in patterns if isinstance(pattern, str))


def _match_one(plain: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], f"model.{plain}") is not None or re.match(pattern[3:], plain) is not None
        except re.error:
            return False
    target = _plain(pattern)
    if any(mark in target for mark in "*?["):
        return fnmatchcase(plain, target) or fnmatchcase(plain, f"{target}.*") or fnmatchcase(f"model.{plain}", pattern)
    if plain == target or plain.startswith(f"{target}."):
        return True
    return "." not in target and target in plain.split(".")


READERS: dict[str, Callable[[Keys], Rule]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "gptq": _gptq,
    "auto-round": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "torchao": _torchao,
    "mlx": _mlx,
    "hqq": _hqq,
    "modelopt": _modelopt,
    "mixed": _mixed,
    "compressed-tensors": _compressed,
}
