"""
Consumers: functions that handle messages from RabbitMQ, with delayed retries and dead letters held by the broker.

    from outrider.consumer import Reject, consume

    @consume("order.*", queue="billing.on_order", retry_delays=("1s", "10s", "1m", "5m"))
    async def bill(order: Order) -> None: ...

Run them with `outrider worker shop.consumers`, or with `Worker(broker_url=..., consumers=[bill]).run()`.
`outrider.consumer.inbox` applies the effects of an event once. It works without a Worker and without aio-pika.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.consumer.definition import GENERATED, Consumer, consume
    from outrider.consumer.delivery import Delivery
    from outrider.consumer.errors import Reject
    from outrider.consumer.worker import Worker

__all__ = ["GENERATED", "Consumer", "Delivery", "Reject", "Worker", "consume"]

# Imported on first use: outrider.consumer.inbox must work without aio-pika.
_MODULES = {
    "GENERATED": "definition",
    "Consumer": "definition",
    "Delivery": "delivery",
    "Reject": "errors",
    "Worker": "worker",
    "consume": "definition",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
