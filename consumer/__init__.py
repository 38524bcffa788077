"""
Consumer: functions that handle messages, retried by the broker, and applied once where they use the inbox.

    from outrider.consumer import Reject, consume

    @consume("order.*", queue="billing.on_order", retry_delays=("1s", "10s", "1m", "5m"))
    async def bill(order: Order) -> None: ...

and `outrider worker shop.consumers`, or `Worker(broker_url=..., consumers=[bill]).run()`. `outrider.consumer.inbox` can be used
without any of this, and without aio-pika.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.consumer.definition import Consumer, consume
    from outrider.consumer.delivery import Delivery
    from outrider.consumer.errors import Reject
    from outrider.consumer.worker import Worker

__all__ = ["Consumer", "Delivery", "Reject", "Worker", "consume"]

# Loaded when first asked for: whoever imports outrider.consumer.inbox need not have aio-pika.
_HOMES = {
    "Consumer": "definition",
    "Delivery": "delivery",
    "Reject": "errors",
    "Worker": "worker",
    "consume": "definition",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
