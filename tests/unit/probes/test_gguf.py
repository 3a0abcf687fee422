"""GGUF headers: sizes by block arithmetic, split files, and headers that lie, end early or come from the future."""

import contextlib
import random
import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powerband.probes.checkpoint import read_model
from powerband.probes.gguf import read_gguf
from powerband.probes.gguf_types import TENSOR_TYPES, TYPE_BY_NAME
from powerband.records.errors import PowerbandError, RequestError
from tests.unit.probes.gguf_files import LLAMA, TENSORS, typed, write_gguf


def test_weights_are_the_sum_of_their_blocks(tmp_path: Path) -> None:
    model = read_model(str(write_gguf(tmp_path / "m.gguf")))
    # 32 rows of one Q6_K block, a norm of 256 floats, and twice (256 + 128) rows of one Q4_K block
    assert model.weight_bytes == 32 * 210 + 1024 + 2 * (256 + 128) * 144
    assert model.parameters == 32 * 256 + 256 + 2 * (256 + 128) * 256
    assert (model.basis, model.weight_dtype, model.quantisation) == ("measured", "q4_k", "gguf")
    assert sum(part.bytes for part in model.parts) == model.weight_bytes


def test_the_cache_follows_from_heads_and_lengths(tmp_path: Path) -> None:
    model = read_model(str(write_gguf(tmp_path / "m.gguf")))
    (group,) = model.layers
    assert (group.kind, group.count, group.kv_heads, group.head_dim) == ("attention", 2, 2, 64)
    assert (model.vocab, model.context_tokens, model.tied) == (32, 4096, True)


def test_a_window_pattern_marks_the_sliding_layers(tmp_path: Path) -> None:
    values = {**LLAMA, "llama.attention.sliding_window": 512, "llama.attention.sliding_window_pattern": 2}
    model = read_model(str(write_gguf(tmp_path / "m.gguf", values)))
    assert [model.layers[index].kind for index in model.layer_order] == ["sliding", "attention"]


def test_layers_without_attention_keep_a_state(tmp_path: Path) -> None:
    values = {
        **LLAMA,
        "llama.ssm.inner_size": 512,
        "llama.ssm.state_size": 16,
        "llama.ssm.conv_kernel": 4,
        "llama.ssm.group_count": 1,
    }
    tensors = [*TENSORS[:4], ("blk.1.ssm_in.weight", (256, 512), 0, 256 * 512 * 4)]
    model = read_model(str(write_gguf(tmp_path / "m.gguf", values, tensors)))
    kinds = [model.layers[index] for index in model.layer_order]
    assert [group.kind for group in kinds] == ["attention", "recurrent"]
    # three convolution steps over 512 + 2 x 16 channels, and a state of 16 for each of 512, in f32
    assert kinds[1].state_values == 3 * (512 + 2 * 16) + 16 * 512
    assert kinds[1].state_bytes_per_value == 4


def test_parts_of_a_split_file_add_up(tmp_path: Path) -> None:
    split = {"split.count": 2, "split.tensors.count": len(TENSORS)}
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf", {**LLAMA, **split, "split.no": 0}, TENSORS[:3])
    write_gguf(tmp_path / "m-00002-of-00002.gguf", {"general.architecture": "llama", "split.no": 1}, TENSORS[3:])
    whole = read_model(str(write_gguf(tmp_path / "whole.gguf")))
    assert read_model(str(first)).weight_bytes == whole.weight_bytes


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    split = {"split.count": 2, "split.tensors.count": len(TENSORS)}
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf", {**LLAMA, **split}, TENSORS[:3])
    with pytest.raises(RequestError, match=r"m-00002-of-00002\.gguf"):
        read_gguf(first)


@pytest.mark.parametrize(
    ("name", "block", "size"),
    [  # published bits per weight: bytes x 8 / values
        ("q2_k", 256, 84), ("q3_k", 256, 110), ("q4_k", 256, 144), ("q5_k", 256, 176), ("q6_k", 256, 210),
        ("iq1_s", 256, 50), ("iq1_m", 256, 56), ("iq2_xxs", 256, 66), ("iq2_xs", 256, 74), ("iq2_s", 256, 82),
        ("iq3_xxs", 256, 98), ("iq3_s", 256, 110), ("iq4_xs", 256, 136), ("iq4_nl", 32, 18), ("mxfp4", 32, 17),
        ("q4_0", 32, 18), ("q4_1", 32, 20), ("q5_0", 32, 22), ("q5_1", 32, 24), ("q8_0", 32, 34), ("bf16", 1, 2),
        ("tq1_0", 256, 54), ("tq2_0", 256, 66),
    ],
)  # fmt: skip
def test_block_sizes_are_those_of_ggml(name: str, block: int, size: int) -> None:
    kind = TYPE_BY_NAME[name]
    assert (kind.block_values, kind.block_bytes) == (block, size)
    assert kind.size_bytes(block * 7) == size * 7


@pytest.mark.parametrize("version", [0, 1, 4, 99, 0x03000000])
def test_a_version_not_known_here_is_refused(tmp_path: Path, version: int) -> None:
    with pytest.raises(RequestError, match=r"GGUF version|big-endian") as caught:
        read_gguf(write_gguf(tmp_path / "m.gguf", version=version))
    assert "versions 2 and 3" in caught.value.hint


def test_a_petabyte_claim_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    claim = 1 << 50
    for head in (
        struct.pack("<IQQ", 3, claim, 1),  # tensors
        struct.pack("<IQQ", 3, 0, claim),  # values
        struct.pack("<IQQQ", 3, 0, 1, claim),  # the first key's length
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, claim),  # an array
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, claim),  # of strings
    ):
        path.write_bytes(b"GGUF" + head + b"\0" * 64)
        began = time.monotonic()
        with pytest.raises(RequestError, match="claims"):
            read_gguf(path)
        assert time.monotonic() - began < 1


def test_tensors_that_the_file_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="its tensors need"):
        read_gguf(write_gguf(tmp_path / "m.gguf", data=False))
    huge = [("token_embd.weight", (1 << 40, 1 << 40), 0, 0)]
    with pytest.raises(RequestError, match="its tensors need"):
        read_gguf(write_gguf(tmp_path / "h.gguf", tensors=huge))


def test_unknown_types_and_shapes_are_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="type 77"):
        read_gguf(write_gguf(tmp_path / "a.gguf", tensors=[("x", (256,), 77, 0)]))
    with pytest.raises(RequestError, match=r"rows of 100 values.*q4_k packs 256"):
        read_gguf(write_gguf(tmp_path / "b.gguf", tensors=[("x", (100, 2), 12, 0)]))
    assert 4 not in TENSOR_TYPES  # withdrawn


def test_what_is_no_language_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"general\.architecture"):
        read_model(str(write_gguf(tmp_path / "a.gguf", {"general.name": "x"})))
    with pytest.raises(RequestError, match=r"llama\.block_count"):
        read_model(str(write_gguf(tmp_path / "b.gguf", {"general.architecture": "llama"})))
    (tmp_path / "c.gguf").write_bytes(b"not a model at all, but long enough to be one")
    with pytest.raises(RequestError, match="not a GGUF file"):
        read_model(str(tmp_path / "c.gguf"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30), cuts=st.booleans())
def test_damage_never_escapes_as_a_traceback(tmp_path: Path, seed: int, cuts: bool) -> None:
    """Truncation or flipped bytes: the file is read, or refused with a message; nothing else, and quickly."""
    chance = random.Random(seed)
    data = bytearray(write_gguf(tmp_path / "m.gguf").read_bytes()[:2048])
    if cuts:
        data = data[: chance.randrange(len(data))]
    else:
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    path = tmp_path / "damaged.gguf"
    path.write_bytes(bytes(data) + (b"" if cuts else b"\0" * 200_000))
    began = time.monotonic()
    with contextlib.suppress(PowerbandError):
        read_model(str(path))
    assert time.monotonic() - began < 5


def test_long_vocabularies_are_stepped_over(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(50_000)]
    path = write_gguf(tmp_path / "m.gguf", {**LLAMA, "tokenizer.ggml.tokens": words})
    began = time.monotonic()
    assert read_model(str(path)).vocab == 50_000
    assert time.monotonic() - began < 2
    assert len(typed(words)) > 500_000
