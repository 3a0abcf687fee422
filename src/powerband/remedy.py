"""A promise that a machine cannot keep: which weight format, or which other card, is predicted to keep it."""

from collections.abc import Iterable

import msgspec

from powerband.account.ledger import compute_ledger
from powerband.account.weights import requantised
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.slo import Slo
from powerband.records.units import percent
from powerband.records.value import Record
from powerband.records.workload import Workload
from powerband.simulate.step_time import StepTime, predict_from_datasheet
from powerband.simulate.what_if import WhatIf, what_if

FORMATS = ("fp8", "int8", "int4")  # from the mildest; which of them an engine can load is the adapter's to say
MOST_SHOWN = 3
# With more than this a trace is cut for the many simulations here.
MOST_REQUESTS = 400


class Alternative(Record):
    """A change that would keep the promise by the prediction; ``gated``: answers change, so quality must pass first.

    ``surely``: at both ends of the prediction's interval too.
    """

    change: str
    attainment: float
    surely: bool
    gated: bool


def find_alternatives(
    model: ModelSpec,
    device: DeviceSpec,
    config: EngineConfig,
    workload: Workload,
    slo: Slo,
    step: StepTime,
    *,
    count: int,
    cards: Iterable[DeviceSpec],
    deadline_s: float | None = None,
) -> list[Alternative]:
    """Formats of the same model on this machine, then other cards by their bandwidth; at most three of each.

    Another format keeps the calibrated factors; another card is predicted from its datasheet alone. Replicas and
    tensor parallelism are not tried here. Where nothing of the catalogue helps the answer is empty.
    """
    some = msgspec.structs.replace(workload, requests=workload.requests[:MOST_REQUESTS])
    found: list[Alternative] = []

    def ask(change: str, model: ModelSpec, device: DeviceSpec, step: StepTime, *, gated: bool) -> None:
        one = _ask(model, device, config, some, slo, step, count=count, deadline_s=deadline_s)
        if one is not None and one.holds and one.metrics is not None:
            attainment = one.metrics.attainment or 0.0
            found.append(Alternative(change=change, attainment=attainment, surely=bool(one.surely), gated=gated))

    for name in FORMATS:
        narrow = _requantised(model, name)
        if narrow is not None:
            other = msgspec.structs.replace(step, model=narrow)
            ask(f"{name} weights on this {device.name}", narrow, device, other, gated=True)
    formats, found = found[:MOST_SHOWN], []
    for card in sorted(cards, key=lambda card: card.bandwidth_bytes_per_s):
        if card.name != device.name and len(found) < MOST_SHOWN:
            step_there = predict_from_datasheet(model, card, config)
            ask(f"the model as it is on {card.name}", model, card, step_there, gated=False)
    return [*formats, *found]


def describe_alternatives(found: list[Alternative]) -> str:
    """One sentence; what is not predicted to help is not named."""
    if not found:
        return f"no weight format of {', '.join(FORMATS)} and no card of the catalogue is predicted to keep it"
    words = [
        f"{one.change} ({percent(one.attainment)} within "
        f"it{'' if one.surely else ', not at the slow end of the interval'}"
        f"{'; answers change: gate it first' if one.gated else ''})"
        for one in found
    ]
    return "predicted to keep it: " + ", or ".join(words)


def _requantised(model: ModelSpec, name: str) -> ModelSpec | None:
    """None where the model has no parts to convert or the format makes nothing smaller."""
    try:
        narrow = requantised(model, name)
    except RequestError:
        return None
    return narrow if narrow.weight_bytes < 0.95 * model.weight_bytes else None


def _ask(
    model: ModelSpec,
    device: DeviceSpec,
    config: EngineConfig,
    workload: Workload,
    slo: Slo,
    step: StepTime,
    *,
    count: int,
    deadline_s: float | None,
) -> WhatIf | None:
    try:
        ledger = compute_ledger(model, device, config, count=count, remedies=False)
        if not ledger.fits:
            return None
        return what_if(config, workload, step, kv_tokens=ledger.capacity.kv_tokens, slo=slo, deadline_s=deadline_s)
    except RequestError:
        return None
