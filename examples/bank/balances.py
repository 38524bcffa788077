"""
The read side: a table of balances, made from the events of all accounts.

The checkpoint is in the same database as the table and moves in the same transaction, so each event takes effect
exactly once, whatever is killed when. The table can be deleted and made again at any time: the log has everything.
"""

from __future__ import annotations

from typing import Any

import psycopg

from examples.bank.accounts import STREAMS, Deposited, Opened, Withdrawn
from outrider import Position, StoredEvent

TABLES = """
CREATE TABLE IF NOT EXISTS balance (
    account text PRIMARY KEY, owner text NOT NULL, currency text NOT NULL, cents bigint NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoint (name text PRIMARY KEY, position text);
INSERT INTO checkpoint (name) VALUES ('balances') ON CONFLICT DO NOTHING;
"""


def project(connection: psycopg.Connection[Any], *, limit: int = 500) -> int:
    """Apply the next events; returns how many. 0: the table is up to date. Others wait, so that one runs at a time."""
    with connection.transaction():
        row = connection.execute("SELECT position FROM checkpoint WHERE name = 'balances' FOR UPDATE").fetchone()
        assert row is not None
        checkpoint = None if row[0] is None else Position.parse(row[0])
        page = STREAMS.read(connection, after=checkpoint, category="account", limit=limit)
        for event in page:
            _apply(connection, event)
        connection.execute("UPDATE checkpoint SET position = %s WHERE name = 'balances'", [str(page.next_position)])
    return len(page)


def rebuild(connection: psycopg.Connection[Any]) -> int:
    """Make the table again from the first event, in one transaction: readers see the old one until it is done."""
    applied = 0
    with connection.transaction():
        connection.execute("DELETE FROM balance")
        connection.execute("UPDATE checkpoint SET position = NULL WHERE name = 'balances'")
        while count := project(connection):
            applied += count
    return applied


def _apply(connection: psycopg.Connection[Any], event: StoredEvent) -> None:
    account = event.stream.partition(":")[2]
    match event.data:
        case Opened(owner, currency):
            connection.execute("INSERT INTO balance VALUES (%s, %s, %s, 0)", [account, owner, currency])
        case Deposited(cents):
            connection.execute("UPDATE balance SET cents = cents + %s WHERE account = %s", [cents, account])
        case Withdrawn(cents):
            connection.execute("UPDATE balance SET cents = cents - %s WHERE account = %s", [cents, account])
