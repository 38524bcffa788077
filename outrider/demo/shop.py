"""
Shop: commits orders, each with its message in the same transaction, as an application would.

A share of the transactions is rolled back; their messages must never be delivered.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from typing import Any
from uuid import uuid4

import psycopg

from outrider.demo.tally import DeliveryTally
from outrider.producer import Outbox
from outrider.storage.sql_files import script

CUSTOMERS = ("Ada", "Edsger", "Grace", "Barbara", "Donald", "Radia")
ROLLBACK_SHARE = 0.05
ORDERS_PER_CONNECTION = 100
"""Orders that one connection can commit in a second, also on a slow disk."""
MAX_CONNECTIONS = 16


class Shop:
    """Threads that place orders at a steady rate, each with its own connection, until the shop is closed."""

    def __init__(self, dsn: str, queue: str, rate: float, tally: DeliveryTally) -> None:
        self.error: Exception | None = None
        self._dsn = dsn
        self._queue = queue
        self._rate = rate
        self._tally = tally
        self._closed = threading.Event()
        self._numbers = itertools.count()
        self._outbox = Outbox(exchange="", outside_transaction="raise")
        self._insert_order = script("demo/place_order.sql")
        count = min(MAX_CONNECTIONS, int(rate / ORDERS_PER_CONNECTION) + 1)
        self._threads = [threading.Thread(target=self._run, name=f"shop-{n}", daemon=True) for n in range(count)]

    def open(self) -> None:
        self._opened_at = time.monotonic()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Place no more orders. Returns when the last transactions have ended."""
        self._closed.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                # Orders are numbered across threads, and each number has its time: a slow commit is caught up.
                for number in self._numbers:
                    if self._closed.wait(max(0.0, self._opened_at + number / self._rate - time.monotonic())):
                        return
                    self._place_order(connection)
        except Exception as error:  # run_demo reports it and ends the demo
            self.error = error

    def _place_order(self, connection: psycopg.Connection[Any]) -> None:
        event_id = str(uuid4())
        roll_back = random.random() < ROLLBACK_SHARE  # noqa: S311 - not for cryptography
        order = {"customer": random.choice(CUSTOMERS), "total_cents": random.randint(100, 99_999)}  # noqa: S311
        self._tally.placing(event_id)
        with connection.transaction(force_rollback=roll_back):
            row = connection.execute(self._insert_order, order).fetchone()
            assert row is not None
            self._outbox.publish(
                connection,
                "order.placed",
                {"order": row[0], **order},
                aggregate=("order", row[0]),
                routing_key=self._queue,
                event_id=event_id,
            )
        if roll_back:
            self._tally.rolled_back(event_id)
        else:
            self._tally.committed(event_id)
