"""
The write side: what can happen to an account, and who decides it.

Every function runs in the caller's transaction. Events are in the log and on their way to the broker when it commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg

from outrider import Aggregate, EventStreams, EventTypes, Outbox, Repository

TYPES = EventTypes()


@TYPES.event("account.opened", version=2)
@dataclass(frozen=True)
class Opened:
    owner: str
    currency: str


@TYPES.upcaster("account.opened", version=1)
def accounts_were_in_euro(data: dict[str, Any]) -> dict[str, Any]:
    """The first version had no currency."""
    return {**data, "currency": "EUR"}


@TYPES.event("account.deposited")
@dataclass(frozen=True)
class Deposited:
    cents: int


@TYPES.event("account.withdrawn")
@dataclass(frozen=True)
class Withdrawn:
    cents: int


class NotEnoughMoney(Exception):
    pass


@dataclass
class Account(Aggregate):
    owner: str = ""
    cents: int = 0

    def open(self, owner: str, currency: str) -> None:
        if self.version:
            raise ValueError(f"account {self.id} is open already")
        self.record(Opened(owner, currency))

    def deposit(self, cents: int) -> None:
        self._check_open()
        if cents <= 0:
            raise ValueError("deposit a positive amount")
        self.record(Deposited(cents))

    def withdraw(self, cents: int) -> None:
        self._check_open()
        if cents > self.cents:
            raise NotEnoughMoney(f"account {self.id} holds {self.cents} cents, not {cents}")
        self.record(Withdrawn(cents))

    def apply(self, event: Any) -> None:
        match event:
            case Opened():
                self.owner = event.owner
            case Deposited():
                self.cents += event.cents
            case Withdrawn():
                self.cents -= event.cents

    def _check_open(self) -> None:
        if not self.owner:
            raise ValueError(f"there is no account {self.id}")


STREAMS = EventStreams(Outbox(exchange="bank"), types=TYPES)
ACCOUNTS = Repository(STREAMS, Account, category="account", snapshot_every=100)


def open_account(connection: psycopg.Connection[Any], owner: str, currency: str = "EUR") -> UUID:
    identity = uuid4()
    ACCOUNTS.execute(connection, identity, lambda account: account.open(owner, currency))
    return identity


def deposit(connection: psycopg.Connection[Any], account: UUID, cents: int) -> None:
    ACCOUNTS.execute(connection, account, lambda found: found.deposit(cents))


def transfer(connection: psycopg.Connection[Any], source: UUID, target: UUID, cents: int) -> None:
    """Both accounts in one transaction. In the order of their ids: two transfers must not wait for each other."""
    steps = {source: lambda found: found.withdraw(cents), target: lambda found: found.deposit(cents)}
    for account in sorted(steps):
        ACCOUNTS.execute(connection, account, steps[account])
