"""
The consumer: takes messages from the queue with kombu, as any other program would, and notes their arrival.

It reconnects by itself. `pause` ends its connection in good order: kombu's Redis transport takes a message off the
queue before it has it, so a broker that is killed in between would lose a message that it had confirmed. That is the
consumer's affair, not the outbox's, and the demo keeps it out of the picture.
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
    acknowledge  whether messages are acknowledged one by one, as RabbitMQ wants it. On Redis kombu keeps the books of
                 that itself, with two more synchronous writes for each message.
    """

    def __init__(self, url: str, queue: str, ledger: DeliveryTally, *, acknowledge: bool) -> None:
        self.error: Exception | None = None
        self._url = url
        self._queue = _kombu.Queue(queue, durable=True)
        self._ledger = ledger
        self._acknowledge = acknowledge
        self._wanted = threading.Event()  # cleared: pause
        self._idle = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)

    def declare(self) -> None:
        """Make the queue, before anybody publishes to it."""
        with self._connect() as connection:
            self._queue(connection.default_channel).declare()

    def start(self) -> None:
        self._wanted.set()
        self._thread.start()

    def pause(self) -> None:
        """Returns when nothing is on its way from the broker to the consumer."""
        self._wanted.clear()
        self._idle.wait(PAUSE_SECONDS)

    def resume(self) -> None:
        self._idle.clear()
        self._wanted.set()

    def close(self) -> None:
        self._closed.set()
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(PAUSE_SECONDS)

    def _connect(self) -> Any:
        return _kombu.Connection(self._url, connect_timeout=2)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                if not self._wanted.is_set():
                    self._idle.set()
                    self._wanted.wait()
                    continue
                with self._connect() as connection:
                    try:
                        self._consume(connection)
                    except (OperationalError, *connection.connection_errors, *connection.channel_errors):
                        self._closed.wait(RECONNECT_SECONDS)
        except Exception as error:  # shown by the story, which then ends the demo
            self.error = error

    def _consume(self, connection: Any) -> None:
        connection.ensure_connection(max_retries=1, timeout=2)
        with connection.channel() as channel:
            # Not as a context manager: cancelling first would send back what the closing channel still reads.
            consumer = _kombu.Consumer(channel, [self._queue], on_message=self._note, no_ack=not self._acknowledge)
            consumer.consume()
            while self._wanted.is_set() and not self._closed.is_set():
                try:
                    connection.drain_events(timeout=DRAIN_SECONDS)
                except TimeoutError:
                    continue

    def _note(self, message: Any) -> None:
        self._ledger.arrived(message.properties["message_id"])
        if self._acknowledge:
            message.ack()
