"""Waiting for a card's memory, with cards as the driver would show them."""

import pytest

from powerband.engines.free_memory import wait_until_free
from powerband.probes.cards import Card, Holder
from powerband.records.errors import EngineError

GIB = 1 << 30


def card(free_gib: float, *holders: Holder) -> Card:
    return Card(index=0, name="H200", memory_bytes=140 * GIB, free_bytes=round(free_gib * GIB), holders=holders)


def test_nothing_to_wait_for_where_no_card_is_seen() -> None:
    wait_until_free(0.9, 1, patience_s=0.0, read=lambda _: ())


def test_returns_once_the_memory_is_back() -> None:
    seen = [card(20.0), card(20.0), card(139.0)]
    wait_until_free(0.9, 1, patience_s=10.0, read=lambda _: (seen.pop(0),))
    assert seen == []


def test_a_leftover_process_is_named() -> None:
    leftover = Holder(pid=4242, name="VLLM::EngineCore", bytes=130 * GIB)
    with pytest.raises(
        EngineError, match=r"card 0 is not free: 10\.00 GiB of 140\.00 GiB, and 92 % is asked for"
    ) as raised:
        wait_until_free(0.92, 1, patience_s=0.0, read=lambda _: (card(10.0, leftover),))
    assert "pid 4242 (VLLM::EngineCore) holds 130.00 GiB" in raised.value.message
    assert raised.value.hint


def test_memory_that_no_visible_process_holds_says_so() -> None:
    with pytest.raises(EngineError, match="no process that can be seen from here"):
        wait_until_free(0.92, 1, patience_s=0.0, read=lambda _: (card(10.0),))


def test_only_the_cards_that_are_used_have_to_be_free() -> None:
    wait_until_free(0.9, 1, patience_s=0.0, read=lambda _: (card(139.0), card(1.0)))
