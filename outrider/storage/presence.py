"""
Presence: the row in outbox_worker that shows that a service runs, and in which role.

A service that stops deletes its row. A row that is no longer refreshed belongs to a service that was killed.
"""

from __future__ import annotations

import os
import socket
from typing import Literal

from outrider.storage.store import Store
from outrider.version import __version__

INTERVAL_SECONDS = 5.0
"""How often a service refreshes its row."""


class Presence:
    def __init__(self, kind: Literal["relay", "scheduler", "worker"], name: str) -> None:
        self._kind = kind
        self._name = name

    def show(self, store: Store, role: Literal["active", "standby"]) -> None:
        """Write or refresh the row."""
        store.worker_seen(
            kind=self._kind,
            name=self._name,
            role=role,
            version=__version__,
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    def leave(self, store: Store) -> None:
        """Delete the row."""
        store.worker_gone(kind=self._kind, name=self._name)
