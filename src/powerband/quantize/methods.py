"""What can be asked for by name: the method, the tool that does it, and the stored format that comes out."""

import difflib
from typing import Literal

from powerband.records.config import Value
from powerband.records.errors import RequestError
from powerband.records.value import Record

Needs = Literal["none", "optional", "wanted"]  # of calibration data

GGUF_TYPES = {  # name -> llama_ftype (llama.h); a name not here is refused with near ones
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k_s": 11,
    "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18,
    "iq2_xxs": 19, "iq4_nl": 25, "iq4_xs": 30, "bf16": 32,
}  # fmt: skip
NEEDS_IMATRIX = ("iq2_xxs",)  # garbage without one (llama.cpp#4897)


class Tool(Record):
    """A quantiser: the module that must be importable and the script that drives it, and what it cannot do."""

    name: str
    module: str
    script: str
    get: str
    resumes: bool = False


TOOLS = {
    "llm-compressor": Tool(
        name="llm-compressor", module="llmcompressor", script="with_llmcompressor", get="pip install llmcompressor"
    ),
    "gptqmodel": Tool(name="gptqmodel", module="gptqmodel", script="with_gptqmodel", get="pip install gptqmodel"),
    "auto-round": Tool(name="auto-round", module="auto_round", script="with_autoround", get="pip install auto-round"),
    "torchao": Tool(
        name="torchao", module="torchao", script="with_transformers", get="pip install torchao transformers"
    ),
    "bitsandbytes": Tool(
        name="bitsandbytes", module="bitsandbytes", script="with_transformers",
        get="pip install bitsandbytes transformers accelerate",
    ),
    "llama.cpp": Tool(
        name="llama.cpp", module="ik_llama_cpp", script="with_llamacpp", resumes=True,
        get="pip install 'powerband[llamacpp]' (or put llama-quantize on the PATH)",
    ),
    "mlx": Tool(name="mlx", module="mlx_lm", script="with_mlx", get="pip install mlx-lm"),
}  # fmt: skip


class Method(Record):
    """A name a user gives: tools in order of preference, each with the format that it writes."""

    name: str
    title: str
    formats: dict[str, str]  # tool -> stored format
    calibration: Needs = "none"
    bits: float = 4
    groups: bool = False  # weights share a scale within a group of inputs

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(self.formats)


METHODS = {
    method.name: method
    for method in (
        Method(
            name="gptq", title="GPTQ, 4-bit weights", calibration="wanted", groups=True,
            formats={"gptqmodel": "gptq", "llm-compressor": "int4"},
        ),
        Method(
            name="awq", title="AWQ, 4-bit weights", calibration="wanted", groups=True,
            formats={"llm-compressor": "int4", "gptqmodel": "awq"},
        ),
        Method(
            name="autoround", title="AutoRound, 4-bit weights", calibration="wanted", groups=True,
            formats={"auto-round": "gptq"},
        ),
        Method(
            name="smoothquant", title="SmoothQuant, 8-bit weights and activations", calibration="wanted", bits=8,
            formats={"llm-compressor": "int8-w8a8"},
        ),
        Method(
            name="w8a8", title="8-bit weights and activations, rounded to nearest", bits=8,
            formats={"llm-compressor": "int8-w8a8"},
        ),
        Method(name="fp8", title="FP8 weights and activations", bits=8, formats={"llm-compressor": "fp8"}),
        Method(
            name="fp8-block", title="FP8 in 128 x 128 blocks", bits=8, formats={"llm-compressor": "fp8-block"}
        ),
        Method(name="nvfp4", title="NVFP4", calibration="wanted", formats={"llm-compressor": "nvfp4"}),
        Method(name="int8", title="int8 weights", bits=8, formats={"torchao": "torchao-int8"}),
        Method(name="int4", title="int4 weights", groups=True, formats={"torchao": "torchao-int4"}),
        Method(name="bnb-int8", title="LLM.int8()", bits=8, formats={"bitsandbytes": "bnb-int8"}),
        Method(name="bnb-nf4", title="4-bit NormalFloat", formats={"bitsandbytes": "bnb-nf4"}),
        Method(name="mlx4", title="MLX 4-bit", formats={"mlx": "mlx-4bit"}),
        Method(name="mlx8", title="MLX 8-bit", bits=8, formats={"mlx": "mlx-8bit"}),
    )
}  # fmt: skip


class Job(Record):
    """A method with its tool and options, as asked on the command line."""

    method: Method
    tool: Tool
    format: str
    options: dict[str, Value]

    @property
    def asked(self) -> str:
        return self.format if self.method.name == "gguf" else self.method.name

    @property
    def group(self) -> int | None:
        """Weights that share a scale, where it was asked for."""
        return int(self.options["group"]) if "group" in self.options else None


_OPTIONS = {"group": int, "bits": int, "desc_act": bool, "iters": int, "sym": bool}


def parse_method(text: str, tool: str | None = None) -> Job:
    """Read ``gptq``, ``gptq:group=64,desc_act=true`` or ``gguf:Q4_K_M``; RequestError lists near names."""
    name, _, rest = text.strip().partition(":")
    name = name.lower()
    if name == "gguf":
        return _gguf(rest, tool)
    if name not in METHODS:
        raise _unknown(text)
    method = METHODS[name]
    chosen = _tool(method, tool)
    return Job(method=method, tool=TOOLS[chosen], format=method.formats[chosen], options=_options(rest, method))


def _gguf(kind: str, tool: str | None) -> Job:
    kind, _, rest = kind.partition(",")
    low = kind.strip().lower()
    if low not in GGUF_TYPES:
        near = difflib.get_close_matches(low, GGUF_TYPES, n=4, cutoff=0.4)
        raise RequestError(
            f"unknown GGUF type {kind!r}", hint=f"accepted: {', '.join(near or GGUF_TYPES)}, as gguf:Q4_K_M"
        )
    calibration: Needs = "wanted" if low in NEEDS_IMATRIX else "none"
    method = Method(
        name="gguf", title=f"GGUF {low.upper()}", formats={"llama.cpp": f"gguf:{low}"}, calibration=calibration
    )
    chosen = _tool(method, tool)
    return Job(method=method, tool=TOOLS[chosen], format=f"gguf:{low}", options=_options(rest, method))


def _tool(method: Method, tool: str | None) -> str:
    if tool is None:
        return method.tools[0]
    if tool not in method.formats:
        raise RequestError(f"{tool} does not do {method.name}", hint=f"accepted: {', '.join(method.tools)}")
    return tool


def _options(text: str, method: Method) -> dict[str, Value]:
    options: dict[str, Value] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = pair.partition("=")
        if name not in _OPTIONS or not equals:
            raise RequestError(
                f"cannot read option {pair!r} of {method.name}", hint=f"accepted: {', '.join(_OPTIONS)}, as group=64"
            )
        options[name] = _value(name, value)
    return options


def _value(name: str, text: str) -> Value:
    if _OPTIONS[name] is bool:
        if text.lower() not in ("true", "false"):
            raise RequestError(f"{name}={text!r} is not accepted", hint="accepted: true or false")
        return text.lower() == "true"
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise RequestError(f"{name}={text!r} is not accepted", hint="accepted: a whole number")
    return number


def _unknown(text: str) -> RequestError:
    names = [*METHODS, *(f"gguf:{kind.upper()}" for kind in GGUF_TYPES)]
    near = difflib.get_close_matches(text.lower(), names, n=5, cutoff=0.4)
    listed = near or [*METHODS, "gguf:TYPE"]
    return RequestError(
        f"unknown method {text!r}", hint=("did you mean " if near else "accepted: ") + ", ".join(listed)
    )


def planned_methods() -> list[str]:
    """What ``--plan`` looks at where no method was named: every method, and the GGUF types people pick from."""
    kinds = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")
    return [*METHODS, *(f"gguf:{kind}" for kind in kinds)]
