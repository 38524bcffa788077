"""Typed events, upcasters, snapshots, aggregates and encryption, on every handle."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from operator import methodcaller
from typing import Any
from uuid import UUID

import pydantic
import pytest

from outrider import (
    Aggregate,
    ConcurrencyError,
    Event,
    EventStreams,
    EventTypes,
    Forgotten,
    Outbox,
    Repository,
    SubjectEncryption,
    SubjectForgotten,
)
from outrider.producer.encoding import Encoded
from tests.fixtures.database import Database
from tests.fixtures.handles import Stack, every_stack, settled
from tests.fixtures.message_commands import run_cli, run_cli_json
from tests.fixtures.rows import query

TYPES = EventTypes()


class Colour(Enum):
    RED = "red"


@TYPES.event("opened", version=3)
@dataclass(frozen=True)
class Opened:
    customer: str
    currency: str
    limit: Decimal | None = None


@TYPES.upcaster("opened", version=1)
def rename_owner(data: Any) -> Any:
    return {"customer": data["owner"]}


@TYPES.upcaster("opened", version=2)
def add_currency(data: Any) -> Any:
    return data | {"currency": "EUR"}


@TYPES.event("moved")
class Moved(pydantic.BaseModel):
    amount: int


@dataclass(frozen=True)
class Line:
    colour: Colour
    count: int = 1


@TYPES.event("everything")
@dataclass(frozen=True)
class Everything:
    identity: UUID
    at: datetime
    took: timedelta
    lines: list[Line]
    pairs: tuple[int, ...]
    named: dict[str, Line]
    maybe: int | str | None = None
    plain: Any = None


STREAMS = EventStreams(Outbox("shop", context=None), types=TYPES)


@every_stack
def test_typed_events_come_back_from_every_way_of_reading_and_old_ones_are_upcast(
    stack: Stack, database: Database
) -> None:
    one = Event(event_type="opened", payload={"owner": "Ada"}, type_version=1)
    two = {"event_type": "opened", "payload": {"customer": "Bob"}, "type_version": 2}
    given = [one, two, Opened("Cleo", "CHF", Decimal("0.10")), Moved(amount=5), Event(event_type="plain", payload=[1])]

    async def scenario() -> Any:
        async with stack.transaction(database.dsn) as (handle, _):
            assert await settled(STREAMS.append(handle, "account:1", given)) == 5
        async with stack.transaction(database.dsn) as (handle, _):
            loaded = await settled(STREAMS.load(handle, "account:1"))
            iterated = STREAMS.iterate(handle, "account:1", chunk_size=2)
            every = [e async for e in iterated] if hasattr(iterated, "__aiter__") else list(iterated)
            return loaded, every, await settled(STREAMS.read(handle, category="account"))

    for events in asyncio.run(scenario()):
        assert [event.data for event in events] == [
            Opened("Ada", "EUR"),
            Opened("Bob", "EUR"),
            Opened("Cleo", "CHF", Decimal("0.10")),
            Moved(amount=5),
            [1],
        ]
        assert [event.type_version for event in events] == [1, 2, 3, 1, 1]


def test_a_dataclass_with_every_kind_of_field_comes_back_equal(database: Database) -> None:
    event = Everything(
        UUID(int=7),
        datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
        timedelta(seconds=90.5),
        [Line(Colour.RED), Line(Colour.RED, 2)],
        (1, 2, 3),
        {"a": Line(Colour.RED)},
        maybe="text",
        plain={"k": [1]},
    )
    with database.connect(autocommit=False) as connection:
        STREAMS.append(connection, "s", [event])
        assert STREAMS.load(connection, "s")[0].data == event
        STREAMS.append(connection, "s", [Event(event_type="moved", payload={"amount": "no number"})])
        with pytest.raises(ValueError, match="amount"):
            _ = STREAMS.load(connection, "s")[1].data


def test_what_is_registered_twice_or_not_at_all_is_refused(database: Database) -> None:
    types = EventTypes()

    @dataclass
    class Mine:
        n: int

    types.event("mine", version=2)(Mine)
    with pytest.raises(ValueError, match="registered already"):
        types.event("mine")(Line)
    with pytest.raises(TypeError, match="neither a dataclass nor a Pydantic model"):
        types.event("other")(Colour)
    with pytest.raises(TypeError, match="Line is not registered"):
        types.to_event(Line(Colour.RED))
    with pytest.raises(ValueError, match="mine has no upcaster from version 1"):
        types.decode("mine", 1, {"n": 1})
    assert types.decode("mine", 3, {"n": 1, "newer": 2}) == Mine(1)
    types.upcaster("mine", version=1)(lambda data: data)
    with pytest.raises(ValueError, match="upcaster from version 1 already"):
        types.upcaster("mine", version=1)(lambda data: data)


# -- snapshots and aggregates ------------------------------------------------------------------------------------------


@dataclass
class Account(Aggregate):
    customer: str = ""
    balance: int = 0
    seen: list[int] = field(default_factory=list)

    def open(self, customer: str) -> None:
        self.record(Opened(customer, "EUR"))

    def move(self, amount: int) -> None:
        if self.balance + amount < 0:
            raise ValueError("not enough money")
        self.record(Moved(amount=amount))

    def apply(self, event: Any) -> None:
        match event:
            case Opened():
                self.customer = event.customer
            case Moved():
                self.balance += event.amount
                self.seen.append(event.amount)


ACCOUNTS = Repository(STREAMS, Account, category="account", snapshot_every=3)


@every_stack
def test_a_repository_loads_saves_and_takes_snapshots(stack: Stack, database: Database) -> None:
    async def scenario() -> None:
        async with stack.transaction(database.dsn) as (handle, _):
            new = await settled(ACCOUNTS.load(handle, 1))
            assert (new.version, new.id, new.balance) == (0, "1", 0)
            new.open("Ada")
            new.move(10)
            await settled(ACCOUNTS.save(handle, new))
            assert await settled(STREAMS.load_snapshot(handle, "account:1")) is None
            done = await settled(ACCOUNTS.execute(handle, 1, lambda account: account.move(-4)))
            assert (done.version, done.balance, done.recorded) == (3, 6, [])
            snapshot = await settled(STREAMS.load_snapshot(handle, "account:1"))
            assert (snapshot.version, snapshot.state["balance"], snapshot.snapshot_type) == (3, 6, "Account")
            await settled(ACCOUNTS.execute(handle, 1, lambda account: account.move(1)))
            await settled(STREAMS.save_snapshot(handle, "account:1", 2, {}))  # an older one replaces nothing
            loaded = await settled(ACCOUNTS.load(handle, 1))
            assert (loaded.version, loaded.customer, loaded.seen) == (4, "Ada", [10, -4, 1])

    asyncio.run(scenario())


def test_a_load_starts_at_the_snapshot_unless_its_form_has_changed(database: Database) -> None:
    with database.connect(autocommit=False) as connection:
        for amount in (1, 2, 3):
            ACCOUNTS.execute(connection, 1, methodcaller("move", amount))
        connection.execute("UPDATE outbox_event SET payload = '{\"amount\": 100}' WHERE version < 3")
        assert ACCOUNTS.load(connection, 1).balance == 6
        newer = Repository(STREAMS, Account, category="account", snapshot_every=3, snapshot_version=2)
        assert newer.load(connection, 1).balance == 203


def test_a_command_runs_again_if_another_transaction_has_appended(database: Database) -> None:
    def deposit(times: int) -> None:
        with database.connect(autocommit=False) as connection:
            for _ in range(times):
                ACCOUNTS.execute(connection, 1, lambda account: account.move(1))
                connection.commit()

    threads = [threading.Thread(target=deposit, args=(10,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.connect(autocommit=False) as connection:
        account = ACCOUNTS.load(connection, 1)
        assert (account.version, account.balance) == (40, 40)
        stale = ACCOUNTS.load(connection, 1)
        ACCOUNTS.execute(connection, 1, lambda account: account.move(1))
        stale.move(1)
        with pytest.raises(ConcurrencyError):
            ACCOUNTS.save(connection, stale)
        with pytest.raises(ValueError, match="not enough money"):
            ACCOUNTS.execute(connection, 1, lambda account: account.move(-1000))
        assert ACCOUNTS.load(connection, 1).version == 41


# -- codec and encryption ----------------------------------------------------------------------------------------------


SECRET = EventTypes()
SECRET.event("opened", version=3, subject=lambda event: event.customer)(Opened)
SECRET.event("moved")(Moved)


class Reversed:
    """The smallest codec."""

    def encode(self, payload: Encoded, subject: str | None) -> Encoded:
        return payload._replace(payload=payload.payload[::-1], content_encoding="reversed")

    def decode(self, payload: Encoded) -> Encoded:
        if payload.content_encoding != "reversed":
            return payload
        return payload._replace(payload=payload.payload[::-1], content_encoding="utf-8")


def test_a_codec_changes_payloads_in_the_log_and_in_the_message_and_an_append_can_be_repeated(
    database: Database,
) -> None:
    streams = EventStreams(Outbox(context=None), codec=Reversed())
    event = Event(event_type="a", payload={"n": 1}, event_id=UUID(int=1))
    with database.connect(autocommit=False) as connection:
        EventStreams(Outbox(context=None)).append(connection, "s", [Event(event_type="old", payload={})])
        assert streams.append(connection, "s", [event]) == streams.append(connection, "s", [event]) == 2
        assert [each.data for each in streams.load(connection, "s")] == [{}, {"n": 1}]
        for table in ("outbox", "outbox_event"):
            assert query(connection, f"SELECT payload FROM {table} WHERE event_type = 'a'") == [b'}1:"n"{']


@every_stack
def test_a_forgotten_subject_can_be_read_nowhere_and_written_no_more(stack: Stack, database: Database) -> None:
    streams = EventStreams(Outbox("shop", context=None), types=SECRET, codec=SubjectEncryption())
    accounts = Repository(
        streams, Account, category="account", snapshot_every=2, snapshot_subject=lambda account: account.customer
    )

    async def opened() -> Any:
        async with stack.transaction(database.dsn) as (handle, _):
            account = await settled(accounts.load(handle, 1))
            account.open("ada")
            account.move(7)
            await settled(accounts.save(handle, account))
            await settled(streams.append(handle, "account:2", [Opened("bob", "EUR")]))
        async with stack.transaction(database.dsn) as (handle, _):
            assert (await settled(accounts.load(handle, 1))).customer == "ada"
            assert (await settled(streams.load_snapshot(handle, "account:1"))).state["customer"] == "ada"
            return [event.data for event in await settled(streams.read(handle))]

    async def forgotten() -> Any:
        async with stack.transaction(database.dsn) as (handle, _):
            with pytest.raises(SubjectForgotten, match="'ada' was forgotten"):
                await settled(streams.append(handle, "account:1", [Opened("ada", "EUR")]))
            assert (await settled(streams.load_snapshot(handle, "account:1"))).state == Forgotten("ada")
            assert (await settled(accounts.load(handle, 1))).balance == 7
            return [event.data for event in await settled(streams.read(handle))]

    assert asyncio.run(opened()) == [Opened("ada", "EUR"), Moved(amount=7), Opened("bob", "EUR")]
    with database.connect() as connection:
        for table in ("outbox", "outbox_event", "outbox_snapshot"):
            for payload in query(connection, f"SELECT payload FROM {table} WHERE content_type LIKE '%%encrypted%%'"):
                assert b"EUR" not in payload
                assert json.loads(payload)["subject"] in ("ada", "bob")
    assert run_cli(database, "forget", "ada", "--yes").strip() == "forgotten"
    assert asyncio.run(forgotten()) == [Forgotten("ada"), Moved(amount=7), Opened("bob", "EUR")]
    with database.connect() as connection:
        assert query(connection, "SELECT count(*) FROM outbox_subject_key WHERE key IS NULL") == [1]


def test_a_subject_is_refused_where_nothing_would_be_encrypted(database: Database) -> None:
    event = Event(event_type="a", payload={}, subject="ada")
    with database.connect(autocommit=False) as connection:
        with pytest.raises(ValueError, match="no codec that encrypts"):
            EventStreams(Outbox(context=None), types=SECRET).append(connection, "s", [Opened("ada", "EUR")])
        with pytest.raises(ValueError, match="only an event of a stream can have a subject"):
            Outbox(context=None).publish_many(connection, [event])


def test_forget_asks_and_a_subject_without_a_key_gets_none(database: Database) -> None:
    assert "asks for confirmation" in run_cli(database, "forget", "cleo", status=2)
    assert run_cli_json(database, "forget", "cleo", "--yes") == [{"subject": "cleo", "had_key": False}]
    streams = EventStreams(Outbox(context=None), types=SECRET, codec=SubjectEncryption())
    with database.connect(autocommit=False) as connection, pytest.raises(SubjectForgotten):
        streams.append(connection, "s", [Opened("cleo", "EUR")])


def test_keys_can_come_from_a_callable_and_a_consumer_decrypts_what_it_receives(database: Database) -> None:
    keys: dict[str, bytes | None] = {"ada": bytes(32)}
    by_callable = SubjectEncryption(keys.get)
    streams = EventStreams(Outbox(context=None), types=SECRET, codec=by_callable)
    with database.connect(autocommit=False) as connection:
        streams.append(connection, "s", [Opened("ada", "EUR")])
        [row] = connection.execute("SELECT payload, content_type, content_encoding FROM outbox").fetchall()
        assert query(connection, "SELECT count(*) FROM outbox_subject_key") == [0]
        received = Encoded(*row)
        assert json.loads(by_callable.decode(received).payload)["currency"] == "EUR"
        with pytest.raises(ValueError, match="the key of 'ada' is not the one"):
            SubjectEncryption(lambda _: bytes([1] * 32)).decode(received)
        table = SubjectEncryption()
        tabled = EventStreams(Outbox(context=None), types=SECRET, codec=table)
        tabled.append(connection, "t", [Opened("bob", "EUR")])
        [row] = connection.execute(
            "SELECT payload, content_type, content_encoding FROM outbox WHERE ordering_key = 't'"
        ).fetchall()
        received = Encoded(*row)
        assert json.loads(table.load_keys(connection, [received]).decode(received).payload)["customer"] == "bob"
