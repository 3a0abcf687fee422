"""Configs in LitGPT's keys: published parameter counts, agreement with the hub's own config, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from powerband.probes.config_model import model_from_config
from powerband.records.errors import RequestError

BASE: dict[str, Any] = {
    "name": "pythia",
    "block_size": 2048,
    "padded_vocab_size": 50304,
    "vocab_size": 50254,
    "norm_class_name": "LayerNorm",
    "n_query_groups": 0,
    "bias": True,
    "mlp_class_name": "GptNeoxMLP",
    "rotary_percentage": 0.25,
    "parallel_residual": True,
}


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "published"),
    [  # the Pythia suite's table (EleutherAI/pythia), total parameters
        (6, 512, 8, 70_426_624),
        (12, 768, 12, 162_322_944),
        (24, 1024, 16, 405_334_016),
        (16, 2048, 8, 1_011_781_632),
        (24, 2048, 16, 1_414_647_808),
        (32, 2560, 32, 2_775_208_960),
    ],
)
def test_pythia_by_its_published_count(layers: int, hidden: int, heads: int, published: int) -> None:
    fields = {**BASE, "n_layer": layers, "n_embd": hidden, "n_head": heads, "n_query_groups": heads}
    spec = model_from_config("pythia", {**fields, "intermediate_size": 4 * hidden}, "config.json")
    assert spec.parameters == published
    assert spec.context_tokens == 2048
    assert any("counted apart" in note for note in spec.assumed)


def test_latent_attention_is_refused() -> None:
    fields = {**BASE, "n_layer": 2, "n_embd": 64, "n_head": 2, "latent_attention": {"kv_lora_rank": 16}}
    with pytest.raises(RequestError, match="latent attention"):
        model_from_config("x", {**fields, "n_query_groups": 2, "intermediate_size": 128}, "config.json")


def test_every_litgpt_config_is_read_and_agrees_with_the_hub(field_dir: Path) -> None:
    models = field_dir / "models"
    hub = {}
    for path in models.glob("*.json"):
        entry = json.loads(path.read_text())
        hub[entry["model"].lower()] = entry
    read = compared = 0
    for path in sorted((models / "litgpt").glob("*.json")):
        entry = json.loads(path.read_text())
        spec = model_from_config(entry["model"], entry["config"], str(path))
        read += 1
        twin = hub.get(entry["model"].lower())
        if twin is None or entry["model"] == "mistralai/Mixtral-8x22B-v0.1":  # litgpt pads its vocabulary to 32768
            continue
        known = model_from_config(twin["model"], twin["config"], twin["model"])
        tied_head = known.vocab * known.hidden if known.tied and not spec.tied else 0
        assert spec.parameters - tied_head == known.parameters, entry["model"]
        compared += 1
    assert read == 181
    assert compared >= 25
