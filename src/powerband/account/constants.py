"""Constants of engines, by release: package data, each figure with a note of how it was obtained."""

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from powerband.records.errors import RequestError
from powerband.records.value import Record


class VllmRelease(Record):
    """What a vLLM release allocates beside weights and cache; account/data/vllm.toml says where each figure is from.

    ``*_units`` count 16-bit values per token of the profiling step: of the MLP width, the query width and the hidden
    size; ``held_units``, of the hidden size, where the MLP's input outlives the gate. ``compile_tables`` are copies of
    the embedding while torch.compile runs; ``graphs_inside_share`` of the graphs is taken off the budget. ``*_large``
    hold on cards of 70 GiB and more other than the A100.
    """

    runner: str
    note: str
    utilisation: float
    batch_tokens: int
    batch_tokens_large: int
    seqs: int
    seqs_large: int
    sampler_bytes_per_logit: float
    sampler_scratch_rows: int
    sampler_when_chunked: bool
    experts_persist: bool
    mlp_units: float
    attention_units: float
    hidden_units: float
    held_units: float
    compile_tables: float
    cublas_bytes: int
    cublas_bytes_hopper: int
    non_torch_bytes: int
    non_torch_bytes_tp: int
    context_bytes: int
    graph_bytes_per_layer_size: float
    graph_bytes_per_expert_layer_size: float
    graph_bytes_per_layer_large_size: float
    graphs_inside_share: float
    state_bytes_per_logit: float
    tokens_from_concurrency: bool
    since: str = msgspec.field(name="from")


def parse_version(text: str) -> tuple[int, ...]:
    """``0.8.5.post1`` as (0, 8, 5); raises RequestError where no number stands in front."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    if match is None:
        raise RequestError(f"cannot read engine version {text!r}", hint="write numbers, such as 0.26.0")
    return tuple(int(part) for part in match[1].split("."))


@cache
def vllm_releases() -> tuple[VllmRelease, ...]:
    text = files("powerband.account").joinpath("data", "vllm.toml").read_text(encoding="utf-8")
    return tuple(msgspec.convert(entry, VllmRelease) for entry in tomllib.loads(text)["release"])


def newest_vllm() -> str:
    return max((release.since for release in vllm_releases()), key=parse_version)


def vllm_release(version: str, *, second_runner: bool) -> VllmRelease:
    """The newest entry not after ``version``; the V2 runner's where the release has one and the model runs on it."""
    wanted = parse_version(version)
    fitting = [release for release in vllm_releases() if parse_version(release.since) <= wanted]
    newest = max(parse_version(release.since) for release in fitting)
    candidates = [release for release in fitting if parse_version(release.since) == newest]
    runner = "v2" if second_runner and any(c.runner == "v2" for c in candidates) else candidates[0].runner
    return next(release for release in candidates if release.runner == runner)


@cache
def engine_constants(engine: str) -> dict[str, Any]:
    """The table of one of the other engines, from account/data/engines.toml."""
    text = files("powerband.account").joinpath("data", "engines.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)[engine.replace("-", "_")]
    return table
