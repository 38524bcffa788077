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
    from outrider.errors import ConcurrencyError, EpochError, EventIdError, OutboxError, SubjectForgotten
    from outrider.producer import (
        Aggregate,
        BatchReceipt,
        Context,
        Event,
        EventPage,
        EventStreams,
        EventTypes,
        Forgotten,
        Outbox,
        OutsideTransactionError,
        OutsideTransactionWarning,
        PayloadCodec,
        Position,
        Receipt,
        Repository,
        Snapshot,
        StoredEvent,
        SubjectEncryption,
        get_tracking_ids,
        tracking,
    )

__all__ = [
    "Aggregate",
    "BatchReceipt",
    "ConcurrencyError",
    "Context",
    "EpochError",
    "Event",
    "EventIdError",
    "EventPage",
    "EventStreams",
    "EventTypes",
    "Forgotten",
    "Outbox",
    "OutboxError",
    "OutsideTransactionError",
    "OutsideTransactionWarning",
    "PayloadCodec",
    "Position",
    "Receipt",
    "Repository",
    "Snapshot",
    "StoredEvent",
    "SubjectEncryption",
    "SubjectForgotten",
    "__version__",
    "get_tracking_ids",
    "tracking",
]


_ERRORS = ("ConcurrencyError", "EpochError", "EventIdError", "OutboxError", "SubjectForgotten")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "outrider.errors" if name in _ERRORS else "outrider.producer"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
