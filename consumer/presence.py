"""
worker_presence: keep the row of this worker in outbox_worker fresh, from a thread of its own.

Used only where the worker has a database. The worker consumes without it: a database that cannot be reached is logged
once and tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from outrider.errors import DatabaseError
from outrider.settings.worker import WorkerSettings
from outrider.storage.connection import connect
from outrider.storage.service_queries import PRESENCE_INTERVAL_SECONDS, WorkerRole
from outrider.storage.store import Store
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger

LEAVE_SECONDS = 5.0

log = get_logger(__name__)


@contextmanager
def worker_presence(settings: WorkerSettings, health: Health) -> Iterator[None]:
    """The row exists inside the block. Its role is active while messages are being consumed, else standby."""
    leave = threading.Event()
    thread = threading.Thread(target=_refresh, args=(settings, health, leave), name="presence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        leave.set()
        thread.join(LEAVE_SECONDS)


def _refresh(settings: WorkerSettings, health: Health, leave: threading.Event) -> None:
    logged = False
    while not leave.is_set():
        try:
            with connect(settings.database_dsn, application_name="outrider worker") as connection:
                store = Store(connection, settings.schema_name)
                while True:
                    role: WorkerRole = "active" if health.role == "active" else "standby"
                    store.worker_seen("worker", settings.name, role)
                    if leave.wait(PRESENCE_INTERVAL_SECONDS):
                        store.worker_gone("worker", settings.name)
                        return
        except DatabaseError as error:
            if not logged:
                log.warning("presence_not_shown", error=str(error))
            logged = True
            leave.wait(PRESENCE_INTERVAL_SECONDS)
