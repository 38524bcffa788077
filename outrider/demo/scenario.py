"""
The story of the demo: orders are placed, the broker is killed, orders are placed all the same, the broker comes back,
and everything that was committed arrives. `tell` ends with a verdict that says whether that was so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg

from outrider.demo.consumer import OrderConsumer
from outrider.demo.screen import Screen, View
from outrider.demo.servers import BrokerKind, count_rows, is_ready, running_servers
from outrider.demo.shop import Shop
from outrider.demo.tally import DeliveryTally, Figures
from outrider.embedded import EmbeddedServer
from outrider.errors import OutboxError

QUEUE = "orders"
KILL_AFTER = 1 / 3  # of the whole time
DEAD_FOR = 1 / 4
READY_SECONDS = 30.0
DRAIN_SECONDS = 60.0
LOOK_SECONDS = 0.1
JOIN_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float
    rate: float
    broker: BrokerKind


@dataclass(frozen=True, slots=True)
class DemoResult:
    figures: Figures
    orders: int
    """Rows of the shop's own table: what the database says was committed."""
    waiting: int
    """Rows that are still in the outbox."""
    drained_seconds: float
    """From the last order to the last delivery."""

    @property
    def kept(self) -> bool:
        """Whether the promise was kept: what was committed was delivered, what was rolled back was not."""
        figures = self.figures
        return self.orders == figures.committed == figures.delivered and not figures.leaked

    def as_json(self) -> dict[str, int | float | None]:
        figures = self.figures
        return {
            "committed": self.orders,
            "delivered": figures.delivered,
            "lost": self.orders - figures.delivered,
            "duplicates": figures.duplicates,
            "rolled_back": figures.rolled_back,
            "rolled_back_but_delivered": figures.leaked,
            "p50_ms": _rounded(figures.p50_ms),
            "p99_ms": _rounded(figures.p99_ms),
            "outage_seconds": _rounded(figures.outage_seconds),
            "outage_messages": figures.outage_messages,
            "outage_max_ms": _rounded(figures.outage_max_ms),
            "drained_seconds": _rounded(self.drained_seconds),
        }


class Nemesis:
    """Kills the broker and brings it back, in a thread of its own: a start can take seconds."""

    def __init__(self, broker: EmbeddedServer, consumer: OrderConsumer, ledger: DeliveryTally, seconds: float) -> None:
        self.error: Exception | None = None
        self.act = "everything runs"
        self.done = threading.Event()
        self._broker = broker
        self._consumer = consumer
        self._ledger = ledger
        self._seconds = seconds
        self._called_off = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nemesis", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._called_off.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        try:
            if self._called_off.wait(self._seconds * KILL_AFTER):
                return
            self._ledger.broker_killed()
            self._consumer.pause()
            self._broker.kill()
            self.act = f"{self._broker.name} is dead (SIGKILL); orders are committed all the same"
            if self._called_off.wait(self._seconds * DEAD_FOR):
                return
            self.act = f"{self._broker.name} is starting again"
            self._broker.start()
            self._ledger.broker_back()
            self._consumer.resume()
            self.act = f"{self._broker.name} is back; what waited is delivered"
            self.done.set()
        except Exception as error:  # shown by the story, which then ends the demo
            self.error = error


def tell(options: Options, screen: Screen) -> DemoResult:
    """Run the demo from the first server to the verdict. OutboxError when it cannot run."""
    screen.say(f"starting PostgreSQL, {options.broker}, cdc-relay and retry-scheduler")
    with ExitStack() as stack:
        servers = stack.enter_context(running_servers(options.broker))
        ledger = DeliveryTally()
        consumer = OrderConsumer(servers.broker.url, QUEUE, ledger, acknowledge=options.broker == "rabbitmq")
        consumer.declare()
        consumer.start()
        stack.callback(consumer.close)
        shop = Shop(servers.dsn, QUEUE, options.rate, ledger)
        stack.callback(shop.close)
        nemesis = Nemesis(servers.broker, consumer, ledger, options.seconds)
        stack.callback(nemesis.close)
        connection = stack.enter_context(psycopg.connect(servers.dsn, autocommit=True))

        def check() -> None:
            servers.check()
            for part in (shop, consumer, nemesis):
                if part.error is not None:
                    raise OutboxError(f"the demo's {type(part).__name__.lower()} failed: {part.error}")

        watch = _Watch(screen, ledger, nemesis, connection, check)
        watch.wait_until_ready()
        shop.open()
        nemesis.start()
        watch.until(lambda: False, options.seconds)
        shop.close()
        closed_at = time.monotonic()
        watch.until(lambda: nemesis.done.is_set() and watch.waiting == 0 and ledger.is_complete(), DRAIN_SECONDS)
        drained = max(0.0, ledger.last_arrival - closed_at)
        return DemoResult(ledger.figures(), watch.orders, watch.waiting, drained)


class _Watch:
    """Looks at everything several times a second, and shows it."""

    def __init__(
        self,
        screen: Screen,
        ledger: DeliveryTally,
        nemesis: Nemesis,
        connection: psycopg.Connection[Any],
        check: Callable[[], None],
    ) -> None:
        self.orders = 0
        self.waiting = 0
        self._screen = screen
        self._ledger = ledger
        self._nemesis = nemesis
        self._connection = connection
        self._check = check
        self._started = time.monotonic()

    def wait_until_ready(self) -> None:
        """Until both services are at work: the latency of a start is not what the demo is about."""
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready(self._connection):
            self._check()
            if time.monotonic() > deadline:
                raise OutboxError(f"the services are not at work after {READY_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)
        self._started = time.monotonic()

    def until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self._check()
            self.orders, self.waiting = count_rows(self._connection)
            elapsed = time.monotonic() - self._started
            self._screen.show(View(elapsed, self._nemesis.act, self._ledger.figures(), self.waiting))
            remaining = deadline - time.monotonic()
            if condition() or remaining <= 0:
                return
            time.sleep(min(LOOK_SECONDS, remaining))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
