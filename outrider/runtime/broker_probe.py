"""
BrokerProbe: connects to the broker now and then while a service does not use it, and closes the connection at once.

So the readiness of a standby tells whether it could take over. It runs on a thread of its own: connecting may take as
long as connect_timeout_seconds, and the standby must notice a free slot meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from outrider.delivery.publisher import Publisher
from outrider.errors import OutboxError
from outrider.telemetry.health import Health
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)


class BrokerProbe:
    """As a context manager: probes from its start to its end."""

    def __init__(self, open_publisher: Callable[[], Publisher], health: Health, *, every_seconds: float) -> None:
        self._open_publisher = open_publisher
        self._health = health
        self._every_seconds = every_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker-probe", daemon=True)

    def __enter__(self) -> Self:
        if self._every_seconds:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Does not wait for a running attempt; its result is dropped."""
        self._end.set()
        self._health.set_degraded(None)

    def _run(self) -> None:
        reason = None
        while not self._end.is_set():
            before, reason = reason, self._connect()
            if not self._end.is_set():
                self._health.set_degraded(reason)
                if reason is not None and before is None:
                    log.warning("broker_unreachable", reason=reason)
            self._end.wait(self._every_seconds)

    def _connect(self) -> str | None:
        """None if the broker answers, else why not."""
        publisher = self._open_publisher()
        try:
            publisher.connect()
        except OutboxError as error:
            return str(error)
        finally:
            publisher.close()
        return None
