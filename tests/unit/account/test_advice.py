"""Remedies, cards compared, and reconciling with what an engine reported."""

from pathlib import Path

import msgspec
import pytest

from powerband.account.compare import compare_devices
from powerband.account.ledger import compute_ledger
from powerband.account.reconcile import combined, reconcile
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.memory import EngineReport, Residual
from powerband.records.units import GIB
from powerband.records.workload import RequestSpec, Workload
from powerband.stores.residuals import find_residual, load_residuals, save_residual
from tests.unit.account.models import LLAMA_7B, LLAMA_8B, card, model_of, vllm

SEVEN_B = model_of(LLAMA_7B)
WORK = Workload(requests=(RequestSpec(offset_ns=0, input_tokens=900, output_tokens=100),), source="test")


def test_remedies_come_in_the_order_of_their_cost() -> None:
    found = compute_ledger(SEVEN_B, card(24.0), vllm(), traffic=WORK)
    names = [remedy.name for remedy in found.remedies]
    order = ["KV cache dtype", "weight quantisation", "length limit", "batch limit", "more cards"]
    assert names == sorted(names, key=order.index)
    assert names[:3] == ["KV cache dtype", "weight quantisation", "weight quantisation"]


def test_a_remedy_is_the_ledger_with_its_settings() -> None:
    """What a remedy promises is what the ledger says when its settings are made."""
    before = compute_ledger(SEVEN_B, card(24.0), vllm(), traffic=WORK)
    for remedy in before.remedies:
        if not remedy.settings:
            continue
        config = vllm(**remedy.settings)
        count = int(remedy.settings.get("tensor_parallel_size", 1))
        after = compute_ledger(SEVEN_B, card(24.0), config, count=count, traffic=WORK, remedies=False)
        assert after.capacity.kv_tokens == remedy.kv_tokens
        assert after.capacity.users_at_traffic == remedy.users
        assert after.fits == remedy.fits


def test_what_does_not_fit_gets_remedies_that_make_it() -> None:
    # 12.32 GiB of budget for 12.55 of weights; the 1.68 beside it hold the context and 0.8 of graphs.
    found = compute_ledger(SEVEN_B, card(14.0), vllm(gpu_memory_utilization=0.88))
    assert not found.fits
    awq = next(remedy for remedy in found.remedies if remedy.change == "AWQ int4 weights")
    assert awq.fits
    assert "weights 12.5" in awq.predicted
    assert "-> 3.6" in awq.predicted


def test_transformers_is_told_to_page_first() -> None:
    found = compute_ledger(SEVEN_B, card(24.0), EngineConfig(engine="transformers", model="m"))
    assert found.remedies[0].name == "paged cache"


def test_cards_are_listed_smallest_first_with_as_many_as_it_takes() -> None:
    cards = [card(80.0, "big"), card(24.0, "small"), card(11.5, "tiny"), card(2.0, "useless")]
    config = vllm(gpu_memory_utilization=0.85)
    fits = compare_devices(SEVEN_B, cards, config, prices={"small": 0.5, "tiny": 0.2})
    assert [(fit.device, fit.count) for fit in fits] == [("tiny", 2), ("small", 1), ("big", 1)]
    assert [fit.price_per_hour for fit in fits] == [0.4, 0.5, None]
    sizes = [fit.count * fit.memory_bytes for fit in fits]
    assert sizes == sorted(sizes)


def report(ledger_report: EngineReport, **changes: float) -> EngineReport:
    return msgspec.structs.replace(ledger_report, **changes)


def test_one_reconcile_takes_the_error_out() -> None:
    """An engine that differs in every line: afterwards its own start is predicted to within a block."""
    model, device = model_of(LLAMA_8B), card(80.0, "h")
    before = compute_ledger(model, device, vllm(), remedies=False)
    real = before.reported
    assert real.weights_bytes is not None
    assert real.activation_bytes is not None
    assert real.non_torch_bytes is not None
    assert real.kv_cache_bytes is not None
    shift = 0.10 * GIB + 0.30 * GIB + 0.05 * real.activation_bytes
    told = report(
        real,
        weights_bytes=real.weights_bytes + 0.10 * GIB,
        non_torch_bytes=real.non_torch_bytes + 0.30 * GIB,
        activation_bytes=1.05 * real.activation_bytes,
        kv_cache_bytes=real.kv_cache_bytes - shift,
    )
    found = reconcile(before, told, engine="vllm", version="0.26", family="dense", source="log")
    assert found.unexplained_bytes == pytest.approx(0, abs=1)
    after = compute_ledger(model, device, vllm(), remedies=False, residual=found.residual)
    assert after.reported.kv_cache_bytes == pytest.approx(told.kv_cache_bytes, rel=0.0005)
    assert "reconciled" in after.lines[0].why
    again = reconcile(after, told, engine="vllm", version="0.26", family="dense", source="log")
    total = combined(found.residual, again.residual)
    assert total.activation_ratio == pytest.approx(1.05, rel=1e-6)
    assert total.weights_bytes == pytest.approx(0.10 * GIB, abs=2)


def test_what_the_engine_does_not_say_is_listed_and_not_guessed() -> None:
    before = compute_ledger(SEVEN_B, card(80.0), vllm(), remedies=False)
    found = reconcile(before, EngineReport(kv_tokens=1000), engine="vllm", version="", family="dense", source="log")
    assert [line.name for line in found.lines] == ["kv_tokens"]
    assert found.unexplained_bytes is None
    assert "activation" in found.silent
    assert found.residual.activation_ratio == 1.0


def test_residuals_are_kept_by_device_engine_version_and_family(tmp_path: Path) -> None:
    def entry(version: str, weights: float) -> Residual:
        return Residual(device="h", engine="vllm", engine_version=version, family="dense", weights_bytes=weights)

    assert load_residuals(tmp_path) == []
    save_residual(tmp_path / "home", entry("0.25", 1.0))
    save_residual(tmp_path / "home", entry("0.26", 2.0))
    save_residual(tmp_path / "home", entry("0.26", 3.0))
    assert len(load_residuals(tmp_path / "home")) == 2

    def find(version: str, family: str = "dense") -> Residual | None:
        return find_residual(tmp_path / "home", device="h", engine="vllm", version=version, family=family)

    assert find("0.26") == entry("0.26", 3.0)
    assert find("") == entry("0.26", 3.0)
    assert find("0.25") == entry("0.25", 1.0)
    assert find("0.24") is None
    assert find("0.26", "moe") is None


def test_a_damaged_store_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "memory-residuals.json").write_text("[{")
    with pytest.raises(RequestError, match="cannot read") as caught:
        load_residuals(tmp_path)
    assert "delete it" in caught.value.hint


def test_an_engine_that_fills_more_than_there_is_room_for_is_told_to_fill_less() -> None:
    """Graphs and what others hold lie beside vLLM's share: with all of the card asked for, they do not fit."""
    found = compute_ledger(model_of(LLAMA_8B), card(80.0), vllm(gpu_memory_utilization=1.0, max_model_len=8192))
    assert not found.fits
    share = found.remedies[0]
    assert (share.name, share.fits) == ("memory share", True)
    value = share.settings["gpu_memory_utilization"]
    assert share.settings == {"gpu_memory_utilization": value}
    for more, fits in ((0.0, True), (0.01, False)):  # the largest that fits
        config = vllm(gpu_memory_utilization=round(float(value) + more, 2), max_model_len=8192)
        assert compute_ledger(model_of(LLAMA_8B), card(80.0), config, remedies=False).fits is fits
    assert all(one.name != "memory share" for one in compute_ledger(model_of(LLAMA_8B), card(80.0), vllm()).remedies)
