"""
Presence: the row in outbox_worker that says this scheduler lives. `outbox status` shows it; one that stops being
refreshed belonged to a scheduler that was killed.
"""

from __future__ import annotations

import os
import socket

from outbox import __version__
from outbox.store import Store


class Presence:
    name = "presence"
    interval_seconds = 5.0
    unfinished = False

    def __init__(self, worker_name: str) -> None:
        self._worker_name = worker_name

    def run_once(self, store: Store) -> dict[str, int]:
        store.worker_seen(
            kind="scheduler",
            name=self._worker_name,
            role="active",
            version=__version__,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        return {}

    def leave(self, store: Store) -> None:
        store.worker_gone(kind="scheduler", name=self._worker_name)
