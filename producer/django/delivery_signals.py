"""
DeliverySignals: sends outbox_message_sent for what a service inside Django delivered, without the archive.

The service reports what the broker confirmed; a thread sends the signals, in that order. The service never waits for a
receiver: if receivers are so slow that MOST_WAITING messages wait, further ones get no signal, and a warning says how
many. At the end of the service the signals that wait are sent, for at most JOIN_SECONDS.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any, NamedTuple, Self
from uuid import UUID

from django.db import close_old_connections, connections

from outrider.producer.django.signals import outbox_message_sent, send_robustly, task_of
from outrider.storage.message import Message

MOST_WAITING = 100_000
JOIN_SECONDS = 10


class _Sent(NamedTuple):
    event_id: str
    event_type: str
    attempts: int
    headers: str
    at: datetime


class DeliverySignals:
    """Call it with messages while the context is open."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._waiting: deque[_Sent] = deque()
        self._left_out = 0
        self._wake = Event()
        self._stopping = False
        self._thread = Thread(target=self._run, name="delivery signals", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join(JOIN_SECONDS)

    def __call__(self, messages: Iterable[Message]) -> None:
        now = datetime.now(UTC)
        for message in messages:
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(
                    _Sent(message.event_id, message.event_type, message.attempts, message.headers, now)
                )
            else:
                self._left_out += 1
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.wait()
                self._wake.clear()
                self._send()
        finally:
            connections.close_all()

    def _send(self) -> None:
        while self._waiting:
            sent = self._waiting.popleft()
            values: dict[str, Any] = {"event_id": UUID(sent.event_id), "event_type": sent.event_type}
            values |= task_of(sent.headers) | {"attempts": sent.attempts, "delivered_at": sent.at}
            send_robustly(outbox_message_sent, self, **values, using=self.using)
        close_old_connections()
        left_out, self._left_out = self._left_out, 0
        if left_out:
            text = "receivers of outbox_message_sent are too slow: %d messages got no signal"
            logging.getLogger(__name__).warning(text, left_out)
