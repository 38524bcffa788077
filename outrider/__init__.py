"""
Outrider: the transactional outbox for Python on PostgreSQL.

    from outrider import Outbox

What an application needs is imported from here, each name when it is first used, so that `import outrider` pulls in no
framework and no driver. Adapters are modules of their own: `outrider.producer.celery`, `outrider.producer.django`,
`outrider.producer.sqlalchemy`, `outrider.producer.alembic`, and `outrider.consumer` for workers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outrider.version import __version__

if TYPE_CHECKING:
    from outrider.errors import ConcurrencyError, OutboxError
    from outrider.producer import (
        BatchReceipt,
        Context,
        Event,
        EventStreams,
        Outbox,
        OutsideTransactionError,
        OutsideTransactionWarning,
        Receipt,
        StoredEvent,
        get_tracking_ids,
        tracking,
    )

__all__ = [
    "BatchReceipt",
    "ConcurrencyError",
    "Context",
    "Event",
    "EventStreams",
    "Outbox",
    "OutboxError",
    "OutsideTransactionError",
    "OutsideTransactionWarning",
    "Receipt",
    "StoredEvent",
    "__version__",
    "get_tracking_ids",
    "tracking",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "outrider.errors" if name in ("ConcurrencyError", "OutboxError") else "outrider.producer"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
