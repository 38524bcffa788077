"""
OrderConsumer: takes messages from the queue with kombu and records their arrival in the tally.

It reconnects on its own. `pause` closes its connection before the broker is killed: kombu's Redis transport removes a
message from the queue before it has received it, so a kill in between would lose a message that the broker had
confirmed. That loss is not the outbox's, so the demo avoids it.
"""

from __future__ import annotations

import threading
from typing import Any

import kombu
from kombu.exceptions import OperationalError

from outrider.demo.tally import DeliveryTally

_kombu: Any = kombu  # its classes are untyped

DRAIN_SECONDS = 0.1
RECONNECT_SECONDS = 0.1
PAUSE_SECONDS = 10.0


class OrderConsumer:
    """
    acknowledge  acknowledge every message, as RabbitMQ needs it. On Redis kombu would track acknowledgements itself,
                 with two more writes for each message.
    """

    def __init__(self, url: str, queue: str, tally: DeliveryTally, *, acknowledge: bool) -> None:
        self.error: Exception | None = None
        self._url = url
        self._queue = _kombu.Queue(queue, durable=True)
        self._tally = tally
        self._acknowledge = acknowledge
        self._running = threading.Event()  # cleared by pause()
        self._idle = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)

    def declare(self) -> None:
        """Declare the queue before the first message is published."""
        with self._connect() as connection:
            self._queue(connection.default_channel).declare()

    def start(self) -> None:
        self._running.set()
        self._thread.start()

    def pause(self) -> None:
        """Close the connection. Returns when no message is between the broker and the consumer."""
        self._running.clear()
        self._idle.wait(PAUSE_SECONDS)

    def resume(self) -> None:
        self._idle.clear()
        self._running.set()

    def close(self) -> None:
        self._closed.set()
        self._running.set()
        if self._thread.ident is not None:
            self._thread.join(PAUSE_SECONDS)

    def _connect(self) -> Any:
        return _kombu.Connection(self._url, connect_timeout=2)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                if not self._running.is_set():
                    self._idle.set()
                    self._running.wait()
                    continue
                with self._connect() as connection:
                    try:
                        self._consume(connection)
                    except (OperationalError, *connection.connection_errors, *connection.channel_errors):
                        self._closed.wait(RECONNECT_SECONDS)
        except Exception as error:  # run_demo reports it and ends the demo
            self.error = error

    def _consume(self, connection: Any) -> None:
        connection.ensure_connection(max_retries=1, timeout=2)
        with connection.channel() as channel:
            # Not as a context manager: it cancels first, and messages that the channel still reads would return.
            consumer = _kombu.Consumer(channel, [self._queue], on_message=self._receive, no_ack=not self._acknowledge)
            consumer.consume()
            while self._running.is_set() and not self._closed.is_set():
                try:
                    connection.drain_events(timeout=DRAIN_SECONDS)
                except TimeoutError:
                    continue

    def _receive(self, message: Any) -> None:
        self._tally.arrived(message.properties["message_id"])
        if self._acknowledge:
            message.ack()
