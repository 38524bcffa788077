"""
The shop: commits orders, each with its message in the same transaction. An application like the reader's own.

Some customers change their mind: those transactions roll back, and their messages must never be seen.
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
ORDERS_PER_TILL = 100
"""What one connection commits in a second on a slow disk, with room to spare."""
MOST_TILLS = 16


class Shop:
    """Tills that place orders at a steady rate, each over its own connection, until the shop closes."""

    def __init__(self, dsn: str, queue: str, rate: float, ledger: DeliveryTally) -> None:
        self.error: Exception | None = None
        self._dsn = dsn
        self._queue = queue
        self._rate = rate
        self._ledger = ledger
        self._closed = threading.Event()
        self._numbers = itertools.count()
        self._outbox = Outbox(exchange="", outside_transaction="raise")
        self._place_order = script("demo/place_order.sql")
        tills = min(MOST_TILLS, int(rate / ORDERS_PER_TILL) + 1)
        self._tills = [threading.Thread(target=self._run_till, name=f"till-{n}", daemon=True) for n in range(tills)]

    def open(self) -> None:
        self._opened_at = time.monotonic()
        for till in self._tills:
            till.start()

    def close(self) -> None:
        """No new orders; returns when the last ones are through."""
        self._closed.set()
        for till in self._tills:
            if till.ident is not None:
                till.join()

    def _run_till(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                # Orders are numbered across tills, and each number has its moment: a slow commit is caught up.
                for number in self._numbers:
                    if self._closed.wait(max(0.0, self._opened_at + number / self._rate - time.monotonic())):
                        return
                    self._serve(connection)
        except Exception as error:  # shown by the story, which then ends the demo
            self.error = error

    def _serve(self, connection: psycopg.Connection[Any]) -> None:
        event_id = str(uuid4())
        changes_their_mind = random.random() < ROLLBACK_SHARE  # noqa: S311 - a customer, not a key
        order = {"customer": random.choice(CUSTOMERS), "total_cents": random.randint(100, 99_999)}  # noqa: S311
        self._ledger.placing(event_id)
        with connection.transaction(force_rollback=changes_their_mind):
            row = connection.execute(self._place_order, order).fetchone()
            assert row is not None
            self._outbox.publish(
                connection,
                "order.placed",
                {"order": row[0], **order},
                aggregate=("order", row[0]),
                routing_key=self._queue,
                event_id=event_id,
            )
        (self._ledger.rolled_back if changes_their_mind else self._ledger.committed)(event_id)
