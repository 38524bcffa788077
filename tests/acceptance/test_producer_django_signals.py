"""`manage.py outbox_signals`, as a process."""

from __future__ import annotations

from outrider import Outbox
from outrider.storage.decision import Burial
from outrider.storage.store import Store
from tests.fixtures.database import Database
from tests.fixtures.django import Site
from tests.fixtures.services import RunService


def test_the_command_sends_signals_until_it_is_stopped_and_then_a_standby_does(
    database: Database, run_service: RunService
) -> None:
    site = Site(database.dsn)
    arguments = ("outbox_signals", "--interval", "0.05", "--lag", "0")
    first = site.start(run_service, *arguments)
    first.wait_for_line("watching default", deadline_seconds=60)
    second = site.start(run_service, *arguments)
    second.wait_for_line("standing by", deadline_seconds=60)
    bury(database, "order.placed")
    first.wait_for_line("signal: ['order.placed'] died")
    assert first.stop() == 0
    second.wait_for_line("watching default")
    bury(database, "order.paid")
    second.wait_for_line("signal: ['order.paid'] died")
    assert second.stop() == 0
    assert "order.placed" not in second.output()
    assert "order.paid" not in first.output()


def bury(database: Database, event_type: str) -> None:
    with database.connect() as connection:
        with connection.transaction():
            Outbox().publish(connection, event_type, {})
        row = connection.execute("SELECT max(id) FROM outbox").fetchone()
        assert row is not None
        Store(connection, "public").bury([Burial(row[0], "rejected", "no", 1)])
