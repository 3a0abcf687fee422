"""Safetensors headers: exact bytes from them, and headers that lie."""

import contextlib
import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from powerband.probes.checkpoint import read_model
from powerband.probes.safetensors import parse_length, read_safetensors, shard_names
from powerband.probes.stored_model import place
from powerband.records.errors import PowerbandError, RequestError

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def shapes(layers: int = 2) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"model.embed_tokens.weight": [100, 64], "lm_head.weight": [100, 64]}
    found["model.norm.weight"] = [64]
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, rows, columns in (("q", 64, 64), ("k", 32, 64), ("v", 32, 64), ("o", 64, 64)):
            found[f"{at}.self_attn.{name}_proj.weight"] = [rows, columns]
        for name, rows, columns in (("gate", 128, 64), ("up", 128, 64), ("down", 64, 128)):
            found[f"{at}.mlp.{name}_proj.weight"] = [rows, columns]
        found[f"{at}.input_layernorm.weight"] = found[f"{at}.post_attention_layernorm.weight"] = [64]
    return found


def write_safetensors(path: Path, tensors: dict[str, list[int]], dtype: str = "BF16", width: int = 2) -> Path:
    entries, offset = {}, 0
    for name, shape in tensors.items():
        size = width
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * offset)
    return path


def write_checkpoint(folder: Path, tensors: dict[str, list[int]], config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def test_headers_and_closed_form_agree_on_a_plain_checkpoint(tmp_path: Path) -> None:
    stored = read_model(str(write_checkpoint(tmp_path / "m", shapes())))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text(json.dumps(CONFIG))
    computed = read_model(str(tmp_path / "c"))
    # 2 x 100 x 64 embeddings; per layer 2 x 64^2 + 2 x 32 x 64 + 3 x 128 x 64 + 2 x 64; a last norm; 16 bits each
    assert stored.weight_bytes == computed.weight_bytes == 2 * (12800 + 2 * (8192 + 4096 + 24576 + 128) + 64)
    assert (stored.basis, computed.basis) == ("measured", "computed")
    assert [part.bytes for part in stored.parts] == [part.bytes for part in computed.parts]


def test_shards_add_up_and_a_missing_one_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", {})
    (folder / "model.safetensors").unlink()
    names = list(shapes())
    first, second = {n: shapes()[n] for n in names[:5]}, {n: shapes()[n] for n in names[5:]}
    write_safetensors(folder / "model-00001-of-00002.safetensors", first)
    write_safetensors(folder / "model-00002-of-00002.safetensors", second)
    index = {"weight_map": dict.fromkeys(first, "model-00001-of-00002.safetensors")}
    index["weight_map"] |= dict.fromkeys(second, "model-00002-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_model(str(folder)).basis == "measured"
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(RequestError, match=r"lacks 1 of 2 weight files, such as model-00002-of-00002"):
        read_model(str(folder))


def test_draft_layers_are_noted_and_not_counted(tmp_path: Path) -> None:
    plain = read_model(str(write_checkpoint(tmp_path / "a", shapes())))
    extra = {**shapes(), "model.layers.2.mlp.gate_proj.weight": [128, 64]}
    draft = read_model(str(write_checkpoint(tmp_path / "b", extra)))
    assert draft.weight_bytes == plain.weight_bytes
    assert any("draft layers" in note for note in draft.assumed)


def test_an_unknown_architecture_takes_every_byte_from_the_headers(tmp_path: Path) -> None:
    odd = {**shapes(), "model.layers.0.mystery.weight": [10, 10]}
    model = read_model(str(write_checkpoint(tmp_path / "m", odd, {**CONFIG, "model_type": "unheard_of"})))
    whole = 2 * sum(a * (b[0] if b else 1) for a, *b in odd.values())
    assert model.weight_bytes == whole
    assert any("'unheard_of' is not known" in note for note in model.assumed)


@pytest.mark.parametrize(
    ("name", "layer", "role"),
    [
        ("model.layers.3.mlp.experts.7.down_proj.weight", 3, "experts"),
        ("model.layers.3.mlp.shared_experts.down_proj.weight", 3, "mlp"),
        ("model.layers.3.mlp.gate.weight", 3, "other"),
        ("model.layers.0.self_attn.q_norm.weight", 0, "norm"),
        ("model.language_model.layers.5.linear_attn.in_proj_qkv.weight", 5, "recurrent"),
        ("transformer.h.2.attn.c_attn.weight", 2, "attention"),
        ("model.visual.blocks.3.attn.qkv.weight", -1, "vision"),
        ("lm_head.weight", -1, "head"),
        ("transformer.wte.weight", -1, "embedding"),
    ],
)
def test_names_give_layer_and_role(name: str, layer: int, role: str) -> None:
    assert place(name) == (layer, role)


@pytest.mark.parametrize("length", [0, 1, 1 << 50, (1 << 63) + 5])
def test_a_header_longer_than_the_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}" + b"\0" * 100)
    with pytest.raises(RequestError, match="claims a header of"):
        read_safetensors(path)
    with pytest.raises(RequestError):
        parse_length(struct.pack("<Q", 200_000_000), "remote", None)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "BF16", "shape": [4, 4], "data_offsets": [0, 31]},
        {"dtype": "BF16", "shape": [-4, 4], "data_offsets": [0, 32]},
        {"dtype": "F99", "shape": [4], "data_offsets": [0, 4]},
        {"dtype": "BF16", "shape": "4", "data_offsets": [0, 8]},
        {"dtype": "BF16", "shape": [1 << 60], "data_offsets": [0, 1 << 61]},
        "nonsense",
    ],
)
def test_tensors_that_cannot_be_are_refused(tmp_path: Path, entry: object) -> None:
    path = tmp_path / "m.safetensors"
    header = json.dumps({"x": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 32)
    with pytest.raises(RequestError):
        read_safetensors(path)


def test_an_index_may_not_leave_its_folder() -> None:
    with pytest.raises(RequestError, match="outside its folder"):
        shard_names(b'{"weight_map": {"a": "../../secret.safetensors"}}', "index")
    with pytest.raises(RequestError, match="no weight_map"):
        shard_names(b'["a"]', "index")


@pytest.mark.parametrize("seed", range(40))
def test_damage_never_escapes_as_a_traceback(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = write_safetensors(tmp_path / "m.safetensors", shapes(1))
    data = bytearray(path.read_bytes())
    if seed % 2:
        data = data[: chance.randrange(len(data))]
    for _ in range(6):
        if data:
            data[chance.randrange(min(len(data), 1500))] = chance.randrange(256)
    path.write_bytes(bytes(data))
    with contextlib.suppress(PowerbandError):
        read_safetensors(path)
