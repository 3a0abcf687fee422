"""Which cards a model fits on: the smallest first, with tensor parallelism where one is not enough."""

from collections.abc import Iterable, Mapping

import msgspec

from powerband.account.capacity import users_of
from powerband.account.plan import Request
from powerband.account.rules import plan_memory
from powerband.records.config import TENSOR_KNOB, EngineConfig
from powerband.records.errors import RequestError
from powerband.records.hardware import DeviceSpec
from powerband.records.model import ModelSpec
from powerband.records.value import Record
from powerband.records.workload import Workload

_COUNTS = (1, 2, 4, 8)


class Fit(Record):
    """A card and how many of it the model needs; ``users`` of the traffic, or sequences of full length without one.

    ``price_per_hour`` is for all ``count`` cards, None where the user named no price.
    """

    device: str
    count: int
    memory_bytes: int
    weights_bytes: int
    kv_tokens: int
    max_concurrency: float
    users: float
    price_per_hour: float | None = None


def compare_devices(
    model: ModelSpec,
    devices: Iterable[DeviceSpec],
    config: EngineConfig,
    *,
    traffic: Workload | None = None,
    version: str = "",
    prices: Mapping[str, float] | None = None,
) -> list[Fit]:
    """The fewest of each card that hold the model and one full-length sequence, smallest total memory first."""
    fits = []
    for device in devices:
        found = _fewest(model, device, config, traffic, version)
        if found is not None:
            price = (prices or {}).get(device.name)
            total = None if price is None else found.count * price
            fits.append(msgspec.structs.replace(found, price_per_hour=total))
    return sorted(fits, key=lambda fit: (fit.count * fit.memory_bytes, fit.count, fit.device))


def _fewest(
    model: ModelSpec, device: DeviceSpec, config: EngineConfig, traffic: Workload | None, version: str
) -> Fit | None:
    knob = TENSOR_KNOB.get(config.engine)
    for count in _COUNTS if knob and device.kind == "gpu" else (1,):
        changed = config.replace(**{knob: count}) if knob else config
        request = Request(model=model, device=device, config=changed, count=count, version=version)
        try:
            plan = plan_memory(request)
        except RequestError:
            return None
        if plan.fits:
            return Fit(
                device=device.name,
                count=count,
                memory_bytes=device.memory_bytes,
                weights_bytes=plan.weights.bytes,
                kv_tokens=plan.pool.tokens,
                max_concurrency=plan.pool.max_concurrency,
                users=users_of(model, plan, traffic),
            )
    return None
