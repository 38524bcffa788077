"""
Bookkeeping: presence, gauges and clean-up of a service, on a thread and a connection of their own.

No message waits for it. A table that is locked, a query that takes long or a commit that waits for a standby delays
only these tasks: each has short limits and commits without waiting (see `beside_messages`). A connection that is lost
is opened again. What fails is logged, and tried again after the task's interval.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Self

from outrider.errors import DatabaseError
from outrider.runtime.maintenance import Maintenance, MaintenanceTask
from outrider.runtime.show_presence import ShowPresence
from outrider.runtime.watch_statements import WatchStatements
from outrider.storage.service_queries import WorkerKind
from outrider.storage.store import Store
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger

RECONNECT_SECONDS = 5.0
LEAVE_SECONDS = 2.0

log = get_logger(__name__)


class Bookkeeping:
    """As a context manager: `start` it inside, once the database is known to be usable; it is closed at the end."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        kind: WorkerKind,
        name: str,
        health: Health,
        tasks: Sequence[MaintenanceTask] = (),
    ) -> None:
        self._open_store = open_store
        self._presence = ShowPresence(kind, name, health)
        self._maintenance = Maintenance([self._presence, WatchStatements(health), *tasks])
        self._wake = threading.Event()
        self._closing = False
        self._role_changed = False
        self._thread = threading.Thread(target=self._run, name="bookkeeping", daemon=True)

    def start(self) -> None:
        """Does nothing if it was started before."""
        if not self._thread.is_alive() and not self._closing:
            self._thread.start()

    def role_changed(self) -> None:
        """Show the new role now, and not at the next interval."""
        self._role_changed = True
        self._wake.set()

    def close(self) -> None:
        """Delete the presence row, if that is possible within LEAVE_SECONDS, and stop."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        logged = False
        while not self._closing:
            try:
                store = self._open_store()
            except DatabaseError as error:
                if not logged:
                    log.warning("bookkeeping_interrupted", reason=str(error), sqlstate=error.sqlstate)
                logged = True
            else:
                logged = False
                with closing(store.connection):
                    self._work(store)
            if not self._closing:
                self._wake.wait(RECONNECT_SECONDS)

    def _work(self, store: Store) -> None:
        """Until the connection is lost, or `close`."""
        try:
            while not self._closing:
                self._wake.clear()
                if self._role_changed:
                    self._role_changed = False
                    self._maintenance.run_soon(self._presence, 0.0)
                self._maintenance.run_due(store)
                if not self._closing:
                    self._wake.wait(self._maintenance.seconds_until_due())
            self._presence.leave(store)
        except DatabaseError as error:
            log.info("bookkeeping_interrupted", reason=str(error), sqlstate=error.sqlstate)
