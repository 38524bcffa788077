"""
WorkerPresence: keep the row of this worker in outbox_worker fresh, from a thread of its own.

Used only where the worker has a database. The worker consumes without it: a database that cannot be reached is logged
once and tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from outrider.errors import DatabaseError
from outrider.storage.connection import connect
from outrider.storage.presence import INTERVAL_SECONDS, Presence
from outrider.storage.store import Store
from outrider.telemetry.logs import get_logger

LEAVE_SECONDS = 5.0

log = get_logger(__name__)


class WorkerPresence:
    """Context manager: the row exists inside the block. `is_active` returns whether messages are being consumed."""

    def __init__(self, dsn: str, *, schema: str, name: str, is_active: Callable[[], bool]) -> None:
        self._dsn = dsn
        self._schema = schema
        self._presence = Presence("worker", name)
        self._is_active = is_active
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="presence", daemon=True)

    def __enter__(self) -> WorkerPresence:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.set()
        self._thread.join(LEAVE_SECONDS)

    def _refresh(self) -> None:
        logged = False
        while not self._leave.is_set():
            try:
                self._refresh_until_lost()
            except DatabaseError as error:
                if not logged:
                    log.warning("presence_not_shown", error=str(error))
                logged = True
                self._leave.wait(INTERVAL_SECONDS)

    def _refresh_until_lost(self) -> None:
        with connect(self._dsn, application_name="outrider worker") as connection:
            store = Store(connection, self._schema)
            while True:
                self._presence.show(store, "active" if self._is_active() else "standby")
                if self._leave.wait(INTERVAL_SECONDS):
                    self._presence.leave(store)
                    return
