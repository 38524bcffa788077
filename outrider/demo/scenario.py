"""
The steps of the demo: orders are committed, the broker is killed, more orders are committed, the broker is restarted,
and every committed message is delivered. `run_demo` returns the figures and whether nothing was lost.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outrider.demo.consumer import OrderConsumer
from outrider.demo.screen import Screen, View
from outrider.demo.servers import BrokerKind, Servers, count_rows, is_ready, running_servers
from outrider.demo.shop import Shop
from outrider.demo.tally import DeliveryTally, Figures
from outrider.embedded.server import EmbeddedServer
from outrider.errors import OutboxError

QUEUE = "orders"
KILL_AFTER = 1 / 3  # of the whole time
DOWN_FOR = 1 / 4
READY_SECONDS = 30.0
DRAIN_SECONDS = 60.0
REFRESH_SECONDS = 0.1
JOIN_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class DemoResult:
    figures: Figures
    orders: int
    """Rows of the shop's table: committed orders according to the database."""
    drained_seconds: float
    """From the last order to the last delivery."""

    @property
    def is_lossless(self) -> bool:
        """Whether every committed message was delivered, and none of a rolled-back transaction."""
        figures = self.figures
        return self.orders == figures.committed == figures.delivered and not figures.rolled_back_but_delivered

    def as_json(self) -> dict[str, int | float | None]:
        figures = self.figures
        return {
            "committed": self.orders,
            "delivered": figures.delivered,
            "lost": self.orders - figures.delivered,
            "duplicates": figures.duplicates,
            "rolled_back": figures.rolled_back,
            "rolled_back_but_delivered": figures.rolled_back_but_delivered,
            "p50_ms": _rounded(figures.p50_ms),
            "p99_ms": _rounded(figures.p99_ms),
            "outage_seconds": _rounded(figures.outage_seconds),
            "outage_messages": figures.outage_messages,
            "outage_max_ms": _rounded(figures.outage_max_ms),
            "drained_seconds": _rounded(self.drained_seconds),
        }


class BrokerKiller:
    """Kills the broker and restarts it, in a thread of its own because a start can take seconds."""

    def __init__(self, broker: EmbeddedServer, consumer: OrderConsumer, tally: DeliveryTally, seconds: float) -> None:
        self.error: Exception | None = None
        self.phase = "PostgreSQL, the broker and both services are running"
        self.broker_is_down = False
        self.done = threading.Event()
        self._broker = broker
        self._consumer = consumer
        self._tally = tally
        self._seconds = seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker-killer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        try:
            if self._closed.wait(self._seconds * KILL_AFTER):
                return
            self._tally.broker_killed()
            self._consumer.pause()
            self._broker.kill()
            self.broker_is_down = True
            self.phase = f"{self._broker.name} was killed (SIGKILL); the shop continues to commit orders"
            if self._closed.wait(self._seconds * DOWN_FOR):
                return
            self.phase = f"{self._broker.name} is starting again"
            self._broker.start()
            self.broker_is_down = False
            self._tally.broker_back()
            self._consumer.resume()
            self.phase = f"{self._broker.name} is running again; pending messages are delivered"
            self.done.set()
        except Exception as error:  # run_demo reports it and ends the demo
            self.error = error


def run_demo(screen: Screen, *, seconds: float, rate: float, broker: BrokerKind) -> DemoResult:
    """Start the servers, run all steps and return the result. Raises OutboxError if the demo cannot run."""
    screen.say(f"starting PostgreSQL, {broker}, cdc-relay and retry-scheduler")
    with ExitStack() as stack:
        servers = stack.enter_context(running_servers(broker))
        tally = DeliveryTally()
        consumer = OrderConsumer(servers.broker.url, QUEUE, tally, acknowledge=broker == "rabbitmq")
        consumer.declare()
        consumer.start()
        stack.callback(consumer.close)
        shop = Shop(servers.dsn, QUEUE, rate, tally)
        stack.callback(shop.close)
        killer = BrokerKiller(servers.broker, consumer, tally, seconds)
        stack.callback(killer.close)
        connection = stack.enter_context(psycopg.connect(servers.dsn, autocommit=True))

        progress = _Progress(screen, tally, servers, shop, consumer, killer, connection)
        progress.wait_until_ready()
        shop.open()
        killer.start()
        progress.show_for(seconds)
        shop.close()
        closed_at = time.monotonic()
        progress.show_until_delivered(DRAIN_SECONDS)
        drained = max(0.0, tally.last_arrival - closed_at)
        return DemoResult(tally.figures(), progress.orders, drained)


@dataclass
class _Progress:
    """Shows the state of the demo several times a second, and raises OutboxError if one of its parts has failed."""

    screen: Screen
    tally: DeliveryTally
    servers: Servers
    shop: Shop
    consumer: OrderConsumer
    killer: BrokerKiller
    connection: psycopg.Connection[Any]
    orders: int = 0
    pending: int = 0
    started: float = field(default_factory=time.monotonic)

    def wait_until_ready(self) -> None:
        """Wait for both services, so that their start is not part of the measured latency."""
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready(self.connection):
            self._check()
            if time.monotonic() > deadline:
                raise OutboxError(f"the services are not ready after {READY_SECONDS:g} s")
            time.sleep(REFRESH_SECONDS)
        self.started = time.monotonic()

    def show_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self._show()
            time.sleep(min(REFRESH_SECONDS, remaining))

    def show_until_delivered(self, most_seconds: float) -> None:
        """Return when the broker is back and every message is delivered, at the latest after `most_seconds`."""
        deadline = time.monotonic() + most_seconds
        self._show()
        while time.monotonic() < deadline and not self._is_delivered():
            time.sleep(REFRESH_SECONDS)
            self._show()

    def _is_delivered(self) -> bool:
        return self.killer.done.is_set() and self.pending == 0 and self.tally.is_complete()

    def _show(self) -> None:
        self._check()
        self.orders, self.pending = count_rows(self.connection)
        elapsed = time.monotonic() - self.started
        killer = self.killer
        self.screen.show(View(elapsed, killer.phase, killer.broker_is_down, self.tally.figures(), self.pending))

    def _check(self) -> None:
        self.servers.check()
        parts: dict[str, Shop | OrderConsumer | BrokerKiller] = {
            "shop": self.shop,
            "consumer": self.consumer,
            "thread that kills the broker": self.killer,
        }
        for name, part in parts.items():
            if part.error is not None:
                raise OutboxError(f"the demo's {name} failed: {part.error}")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
