"""The bank as its users and operators see it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any
from uuid import UUID

import psycopg
import pytest

from examples.bank import accounts, balances
from outrider import Event

Connection = psycopg.Connection[Any]


def catch_up(connection: Connection) -> dict[str, int]:
    while balances.project(connection, limit=3):
        pass
    return dict(connection.execute("SELECT owner, cents FROM balance").fetchall())


def open_accounts(connection: Connection, *owners: str) -> list[UUID]:
    with connection.transaction():
        return [accounts.open_account(connection, owner) for owner in owners]


def test_commands_change_accounts_and_the_read_model_follows(connection: Connection) -> None:
    ada, bob = open_accounts(connection, "Ada", "Bob")
    with connection.transaction():
        accounts.deposit(connection, ada, 1000)
    with connection.transaction():
        accounts.transfer(connection, ada, bob, 300)
    assert catch_up(connection) == {"Ada": 700, "Bob": 300}
    assert balances.project(connection) == 0
    assert connection.execute("SELECT event_type FROM outbox ORDER BY id").fetchall()[-1] in (
        ("account.deposited",),
        ("account.withdrawn",),
    )


def test_a_refused_transfer_leaves_nothing_behind(connection: Connection) -> None:
    ada, bob = open_accounts(connection, "Ada", "Bob")
    with pytest.raises(accounts.NotEnoughMoney), connection.transaction():
        accounts.transfer(connection, ada, bob, 1)
    assert catch_up(connection) == {"Ada": 0, "Bob": 0}
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (2,)


def test_concurrent_transfers_lose_no_cent_and_overdraw_nothing(connection: Connection, bank_dsn: str) -> None:
    ada, bob = open_accounts(connection, "Ada", "Bob")
    with connection.transaction():
        accounts.deposit(connection, ada, 100)

    def move(source: UUID, target: UUID) -> None:
        with psycopg.connect(bank_dsn) as mine:
            for _ in range(10):
                try:
                    accounts.transfer(mine, source, target, 7)
                    mine.commit()
                except accounts.NotEnoughMoney:
                    mine.rollback()

    threads = [threading.Thread(target=move, args=pair) for pair in [(ada, bob), (bob, ada), (ada, bob)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = catch_up(connection)
    assert sum(found.values()) == 100
    assert min(found.values()) >= 0
    assert accounts.ACCOUNTS.load(connection, ada).cents == found["Ada"]


def test_a_rebuild_gives_the_same_table(connection: Connection) -> None:
    ada, _ = open_accounts(connection, "Ada", "Bob")
    with connection.transaction():
        accounts.deposit(connection, ada, 50)
    before = catch_up(connection)
    connection.execute("UPDATE balance SET cents = 0")
    assert balances.rebuild(connection) == 3
    assert catch_up(connection) == before == {"Ada": 50, "Bob": 0}


def test_an_event_of_the_first_version_is_understood(connection: Connection) -> None:
    with connection.transaction():
        old = Event(event_type="account.opened", payload={"owner": "Cleo"}, type_version=1)
        accounts.STREAMS.append(connection, "account:1", [old])
    catch_up(connection)
    assert connection.execute("SELECT owner, currency FROM balance").fetchall() == [("Cleo", "EUR")]


def test_the_events_of_one_account_are_replayed_to_consumers(connection: Connection, bank_dsn: str) -> None:
    [ada] = open_accounts(connection, "Ada")
    connection.execute("DELETE FROM outbox")
    settings = {**os.environ, "OUTRIDER_DATABASE_URL": bank_dsn}
    command = [sys.executable, "-m", "outrider", "replay", "--stream", f"account:{ada}", "--exchange", "bank"]
    assert subprocess.run(command, check=True, env=settings, capture_output=True, text=True).stdout == "replayed 1\n"
    assert connection.execute("SELECT headers ->> 'replayed' FROM outbox").fetchall() == [("true",)]
