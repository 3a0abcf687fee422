"""llama.cpp's buffers against what a server of 2026-10 printed for SmolLM2-135M, and where layers go."""

import msgspec
import pytest

from powerband.account.ledger import compute_ledger
from powerband.records.config import EngineConfig, Value
from powerband.records.hardware import DeviceSpec
from powerband.records.memory import EngineReport, MemoryLedger
from powerband.records.model import LayerGroup
from powerband.records.units import MIB
from tests.unit.account.models import LLAMA_7B, card, model_of

SMOLLM2 = msgspec.structs.replace(
    model_of(
        LLAMA_7B, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=49152, max_position_embeddings=8192, tie_word_embeddings=True,
    ),
    architecture="llama",
)  # fmt: skip
HOST = DeviceSpec(
    name="cpu", vendor="host", kind="cpu", memory_bytes=24 << 30, bandwidth_bytes_per_s=1e10, flops_per_s={}, source="x"
)


def ledger(knobs: dict[str, Value], device: DeviceSpec = HOST, count: int = 1) -> MemoryLedger:
    config = EngineConfig(engine="llamacpp", model="m", knobs=knobs)
    return compute_ledger(SMOLLM2, device, config, count=count, remedies=False)


def reported(**knobs: Value) -> EngineReport:
    return ledger(knobs).reported


@pytest.mark.parametrize(
    ("knobs", "cache_mib", "compute_mib", "output_mib"),
    [  # buffer sizes as printed, in MiB
        ({"n_ctx": 2048, "n_parallel": 1}, 45.00, 16.64, 0.19),
        ({"n_ctx": 4096, "n_parallel": 4}, 90.00, 15.64, 0.75),
        ({"n_ctx": 8192, "n_parallel": 8}, 180.00, 15.64, 1.50),
        ({"n_ctx": 3000, "n_parallel": 3}, 67.50, 15.67, 0.56),
        ({"n_ctx": 8192, "n_parallel": 1}, 180.00, 22.64, 0.19),
        ({"n_ctx": 4096, "n_parallel": 4, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 47.81, 15.67, 0.75),
        ({"n_ctx": 8192, "n_parallel": 2, "cache_type_k": "q4_0"}, 115.31, 18.67, 0.38),
        ({"n_ctx": 4096, "n_parallel": 4, "n_ubatch": 128}, 90.00, 3.91, 0.75),
        ({"n_ctx": 4096, "n_parallel": 4, "n_ubatch": 1024}, 90.00, 31.29, 0.75),
        ({"n_ctx": 4096, "n_parallel": 4, "n_batch": 256}, 90.00, 7.82, 0.75),
        ({"n_ctx": 4096, "n_parallel": 4, "flash_attn": "off"}, 90.00, 27.51, 0.75),
        ({"n_ctx": 8192, "n_parallel": 1, "flash_attn": "off"}, 180.00, 167.51, 0.19),
        ({"n_ctx": 4096, "n_parallel": 4, "kv_unified": True}, 90.00, 18.64, 0.75),
    ],
)  # fmt: skip
def test_buffers_are_those_the_server_prints(
    knobs: dict[str, Value], cache_mib: float, compute_mib: float, output_mib: float
) -> None:
    found = reported(**knobs)
    assert found.kv_cache_bytes is not None
    assert found.activation_bytes is not None
    assert found.kv_cache_bytes / MIB == pytest.approx(cache_mib, abs=0.01)
    assert found.activation_bytes / MIB == pytest.approx(compute_mib + output_mib, rel=0.003, abs=0.02)


@pytest.mark.parametrize(
    ("hidden", "width", "heads", "kv_heads", "compute_mib"),
    [  # two-layer models of other shapes, at 2048 cells and one slot
        (1024, 4096, 16, 4, 36.02), (2048, 5632, 32, 4, 55.02), (1024, 2048, 16, 16, 20.02), (512, 2048, 8, 2, 19.02),
        (1024, 1024, 16, 4, 14.02), (1024, 3072, 16, 8, 30.02),
    ],
)  # fmt: skip
def test_the_compute_buffer_follows_other_shapes(
    hidden: int, width: int, heads: int, kv_heads: int, compute_mib: float
) -> None:
    model = model_of(
        LLAMA_7B, hidden_size=hidden, intermediate_size=width, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=49152,
    )  # fmt: skip
    config = EngineConfig(engine="llamacpp", model="m", knobs={"n_ctx": 2048, "n_parallel": 1})
    found = compute_ledger(model, HOST, config, remedies=False).reported.activation_bytes
    assert found is not None
    assert found / MIB - 49152 * 4 / MIB == pytest.approx(compute_mib, rel=0.003)


def test_half_the_layers_leave_half_the_cache_on_the_card() -> None:
    knobs: dict[str, Value] = {"n_ctx": 4096, "n_parallel": 4}
    whole, half = (ledger({**knobs, "n_gpu_layers": layers}, card(24.0)) for layers in (-1, 15))
    assert half.bytes_of("kv_cache") * 2 == whole.bytes_of("kv_cache") == 90 * MIB
    assert half.bytes_of("weights") < whole.bytes_of("weights") / 2  # the head stays with the host too
    assert any("first 15 of 30 layers stay" in note for note in half.assumed)


def test_two_cards_share_the_layers() -> None:
    one, two = (ledger({"n_ctx": 4096, "n_parallel": 4}, card(24.0), count) for count in (1, 2))
    assert two.bytes_of("kv_cache") * 2 == one.bytes_of("kv_cache")


def test_windowed_layers_keep_their_window_and_one_ubatch() -> None:
    window = LayerGroup(count=30, kind="sliding", kv_heads=3, head_dim=64, window_tokens=512)
    model = msgspec.structs.replace(SMOLLM2, layers=(window,), layer_order=(0,) * 30)
    for full, cells in ((False, 1024), (True, 8192)):
        config = EngineConfig(engine="llamacpp", model="m", knobs={"n_ctx": 8192, "n_parallel": 1, "swa_full": full})
        found = compute_ledger(model, HOST, config, remedies=False)
        assert found.bytes_of("kv_cache") == 30 * cells * 2 * 3 * 64 * 2


def test_the_models_own_context_is_the_default() -> None:
    assert reported(n_ctx=0).kv_tokens == 8192
