"""Django signals for what the services did."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread
from typing import Any
from uuid import UUID

import pytest

from outrider.storage.decision import Burial, Retry
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.django import configure_django, django_connection
from tests.fixtures.waiting import wait_for

configure_django()

from django.db import transaction  # noqa: E402

from outrider.producer.django.django_outbox import publish  # noqa: E402
from outrider.producer.django.signal_watcher import SignalCounts, SignalWatcher, watch  # noqa: E402
from outrider.producer.django.signals import (  # noqa: E402
    outbox_message_dead_lettered,
    outbox_message_failed,
    outbox_message_sent,
)

SIGNALS = {"sent": outbox_message_sent, "failed": outbox_message_failed, "dead": outbox_message_dead_lettered}


@pytest.fixture
def received_signals(database: Database) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The signals that were sent: name and arguments."""
    received: list[tuple[str, dict[str, Any]]] = []

    def listener(name: str) -> Any:
        def listen(signal: Any, sender: Any, **kwargs: Any) -> None:
            received.append((name, kwargs))

        return listen

    listeners = {name: listener(name) for name in SIGNALS}
    for name, signal in SIGNALS.items():
        signal.connect(listeners[name])
    with django_connection(database.dsn):
        yield received
    for name, signal in SIGNALS.items():
        signal.disconnect(listeners[name])


def enqueue(*types: str) -> list[UUID]:
    with transaction.atomic():
        return [publish(each, {}).event_id for each in types]


def test_a_signal_is_sent_once_for_each_delivered_failed_and_buried_message(
    database: Database, received_signals: list[Any]
) -> None:
    enqueue("before")
    with database.connect() as connection:
        store = Store(connection, "public")
        store.settle([1], archive=True)
        watcher = SignalWatcher(lag_seconds=0, batch_size=2)
        identities = enqueue("sent", "failed", "dead", "dead")
        store.settle([2], archive=True)
        store.fail([Retry(3, "refused", 60.0)])
        store.bury([Burial(number, "rejected", "no", 1) for number in (4, 5)])
        assert watcher.run_once() == SignalCounts(1, 1, 2)
        assert watcher.run_once() == SignalCounts(0, 0, 0)
        store.fail([Retry(3, "refused", 60.0)])
    (_, sent), (_, failed), (_, dead) = received_signals
    assert (sent["event_id"], sent["event_type"], sent["using"]) == (identities[0], "sent", "default")
    assert (failed["event_id"], failed["attempts"], failed["error"]) == (identities[1], 1, "refused")
    assert [(each["event_id"], each["reason"], each["error"]) for each in dead["messages"]] == [
        (identities[2], "rejected", "no"),
        (identities[3], "rejected", "no"),
    ]


def test_a_receiver_that_raises_does_not_affect_other_receivers(
    database: Database, received_signals: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**kwargs: Any) -> None:
        raise RuntimeError("an error in a receiver")

    outbox_message_sent.connect(fail)
    try:
        watcher = SignalWatcher(lag_seconds=0)
        enqueue("a", "b")
        with database.connect() as connection:
            Store(connection, "public").settle([1, 2], archive=True)
        assert watcher.run_once().sent == 2
    finally:
        outbox_message_sent.disconnect(fail)
    assert [kwargs["event_type"] for _, kwargs in received_signals] == ["a", "b"]
    assert caplog.text.count("raised RuntimeError") >= 2


def test_signals_are_sent_after_the_lag(database: Database, received_signals: list[Any]) -> None:
    watcher = SignalWatcher(lag_seconds=3600)
    enqueue("a")
    with database.connect() as connection:
        Store(connection, "public").settle([1], archive=True)
    assert watcher.run_once() == SignalCounts(0, 0, 0)
    assert received_signals == []


def test_after_a_lost_connection_no_signal_is_missing_or_repeated(
    database: Database, received_signals: list[Any]
) -> None:
    def signalled() -> list[str]:
        return [message["event_type"] for _, kwargs in received_signals for message in kwargs["messages"]]

    said: list[str] = []
    stop = Event()
    options: dict[str, Any] = {"interval_seconds": 0.05, "lag_seconds": 0, "say": said.append, "warn": said.append}
    thread = Thread(target=watch, args=(stop.wait,), kwargs=options)
    thread.start()
    try:
        wait_for(lambda: said == ["watching default"], deadline_seconds=60)
        enqueue("before", "meanwhile")
        with database.connect() as connection:
            store = Store(connection, "public")
            store.bury([Burial(1, "rejected", "no", 1)])
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            store.bury([Burial(2, "rejected", "no", 1)])
        wait_for(lambda: said[-1] == "watching default" and len(said) == 3, deadline_seconds=60)
        wait_for(lambda: len(signalled()) >= 2, deadline_seconds=60)
    finally:
        stop.set()
        thread.join()
    assert signalled() == ["before", "meanwhile"]
    assert "signals wait for the database" in said[1]
