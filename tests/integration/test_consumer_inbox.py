"""The inbox with every handle on a real server: mark and effects are committed together, or neither is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from outrider.consumer.inbox import Inbox, OutsideTransactionError
from outrider.producer.handles import adapter_for, no_guard
from outrider.producer.statement import Statement
from outrider.storage.sql_files import script
from tests.fixtures.database import Database
from tests.fixtures.django import django_connection
from tests.fixtures.handles import STACKS, Rollback, Stack, every_stack, settled, url_for
from tests.fixtures.rows import query, scratch_database
from tests.fixtures.waiting import wait_for

INBOX = Inbox()
EFFECT = Statement("INSERT INTO effect (name) VALUES (%(name)s::text)")

# One handle for each library that waits for PostgreSQL in its own way.
waiting_stacks = pytest.mark.parametrize(
    "stack",
    [
        pytest.param(STACKS[name], id=name)
        for name in (
            *("psycopg connection", "psycopg2 connection", "sqlalchemy session, psycopg", "django alias"),
            *("psycopg async connection", "asyncpg connection", "sqlalchemy async session, asyncpg"),
        )
    ],
)


class Oops(Exception):
    pass


@pytest.fixture(scope="module")
def scratch(template_database: Database) -> Iterator[Database]:
    with scratch_database(template_database) as database:
        with database.connect() as connection:
            connection.execute("CREATE TABLE effect (name text)")
        yield database


@pytest.fixture
def owner(scratch: Database) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection to inspect the tables, which are empty at the start."""
    with scratch.connect() as connection:
        connection.execute("TRUNCATE outbox_inbox, effect")
        yield connection


def marks(owner: psycopg.Connection[Any]) -> list[Any]:
    return query(owner, "SELECT event_id FROM outbox_inbox ORDER BY 1")


def effects(owner: psycopg.Connection[Any]) -> list[Any]:
    return query(owner, "SELECT name FROM effect ORDER BY 1")


@asynccontextmanager
async def once(handle: Any, event_id: str, consumer: str = "billing") -> AsyncIterator[bool]:
    """Enter with `with` or `async with`, depending on the handle."""
    block = INBOX.once(handle, consumer, event_id)
    if adapter_for(handle).is_async:
        async with block as fresh:
            yield fresh
    else:
        with block as fresh:
            yield fresh


async def apply(handle: Any, name: str) -> None:
    await settled(adapter_for(handle).execute(handle, EFFECT, {"name": name}, no_guard))


async def consume(handle: Any, event_id: str) -> bool:
    """Apply the effect of a fresh event, as a consumer does."""
    async with once(handle, event_id) as fresh:
        if fresh:
            await apply(handle, event_id)
        return fresh


# -- every handle -----------------------------------------------------------------------------------------------------


@every_stack
def test_an_event_is_fresh_once_and_a_failed_or_rolled_back_block_leaves_no_mark(
    stack: Stack, scratch: Database, owner: psycopg.Connection[Any]
) -> None:
    async def scenario() -> None:
        async with stack.transaction(scratch.dsn) as (handle, _):
            assert [await consume(handle, "a"), await consume(handle, "a")] == [True, False]
            with suppress(Oops):
                async with once(handle, "b"):
                    await apply(handle, "undone")
                    raise Oops
            with suppress(Exception):  # an error of the server: the transaction is usable after it
                async with once(handle, "c"):
                    await apply(handle, "undone too")
                    await settled(adapter_for(handle).fetch(handle, Statement("SELECT 1 / 0"), {}, no_guard))
            assert await consume(handle, "b")
            async with once(handle, "a", consumer="shipping") as fresh:
                assert fresh
        with suppress(Rollback):
            async with stack.transaction(scratch.dsn) as (handle, _):
                assert [await consume(handle, "b"), await consume(handle, "d")] == [False, True]
                raise Rollback

    asyncio.run(scenario())
    assert marks(owner) == ["a", "a", "b"]
    assert effects(owner) == ["a", "b"]


@every_stack
def test_outside_a_transaction_nothing_is_marked(
    stack: Stack, scratch: Database, owner: psycopg.Connection[Any]
) -> None:
    async def scenario() -> None:
        async with stack.autocommit(scratch.dsn) as handle:
            with pytest.raises(OutsideTransactionError, match="begin a transaction around both"):
                await consume(handle, "a")

    asyncio.run(scenario())
    assert marks(owner) == effects(owner) == []


# -- concurrent duplicates ---------------------------------------------------------------------------------------------


@waiting_stacks
@pytest.mark.parametrize("first_commits", [True, False], ids=["first commits", "first rolls back"])
def test_a_concurrent_duplicate_waits_and_applies_only_if_the_first_rolled_back(
    stack: Stack, first_commits: bool, scratch: Database, owner: psycopg.Connection[Any]
) -> None:
    async def second() -> bool:
        async with stack.transaction(scratch.dsn) as (handle, _):
            return await consume(handle, "a")

    with scratch.connect(autocommit=False) as first, ThreadPoolExecutor(1) as thread:
        with INBOX.once(first, "billing", "a") as fresh:
            assert fresh
            first.execute("INSERT INTO effect VALUES ('a')")
        duplicate = thread.submit(asyncio.run, second())
        try:
            wait_for(lambda: duplicate.done() or is_waiting(owner), deadline_seconds=60)
            assert not duplicate.done()
        finally:
            first.commit() if first_commits else first.rollback()
        assert duplicate.result(timeout=60) is not first_commits
    assert effects(owner) == marks(owner) == ["a"]


def test_a_duplicate_applies_after_the_first_block_failed_while_its_transaction_continues(
    scratch: Database, owner: psycopg.Connection[Any]
) -> None:
    def second() -> bool:
        with scratch.connect(autocommit=False) as connection, INBOX.once(connection, "billing", "a") as fresh:
            return fresh

    with scratch.connect(autocommit=False) as first, ThreadPoolExecutor(1) as thread:
        with suppress(Oops), INBOX.once(first, "billing", "a"):
            duplicate = thread.submit(second)
            wait_for(lambda: duplicate.done() or is_waiting(owner), deadline_seconds=60)
            assert not duplicate.done()
            raise Oops
        assert duplicate.result(timeout=60) is True


def is_waiting(owner: psycopg.Connection[Any]) -> bool:
    return bool(
        query(
            owner,
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
            "AND query LIKE '%%outbox_inbox%%' AND pid <> pg_backend_pid()",
        )
    )


# -- specific libraries ----------------------------------------------------------------------------------------------


def test_the_block_does_not_commit_a_transaction_that_psycopg_began_implicitly(
    scratch: Database, owner: psycopg.Connection[Any]
) -> None:
    async def asynchronous() -> None:
        async with await psycopg.AsyncConnection.connect(scratch.dsn) as connection:
            assert await consume(connection, "a")
            await connection.rollback()

    with scratch.connect(autocommit=False) as connection:
        with INBOX.once(connection, "billing", "a"), pytest.raises(psycopg.ProgrammingError, match="commit"):
            connection.commit()  # would commit the mark without the effects that follow
        connection.rollback()
        with connection.pipeline(), INBOX.once(connection, "billing", "b") as fresh:
            assert fresh
        connection.rollback()
    asyncio.run(asynchronous())
    assert marks(owner) == []


def test_a_psycopg_rollback_in_the_block_rolls_back_the_callers_transaction(
    scratch: Database, owner: psycopg.Connection[Any]
) -> None:
    async def asynchronous() -> None:
        async with await psycopg.AsyncConnection.connect(scratch.dsn) as connection, connection.transaction():
            await apply(connection, "before")
            async with INBOX.once(connection, "billing", "a"):
                raise psycopg.Rollback

    def synchronous() -> None:
        with scratch.connect() as connection, connection.transaction():
            connection.execute("INSERT INTO effect VALUES ('before')")
            with INBOX.once(connection, "billing", "a"):
                raise psycopg.Rollback

    synchronous()
    asyncio.run(asynchronous())
    assert marks(owner) == effects(owner) == []


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"
    name: Mapped[str] = mapped_column(primary_key=True)


def test_session_objects_are_committed_or_rolled_back_with_the_mark(
    scratch: Database, owner: psycopg.Connection[Any]
) -> None:
    engine = create_engine(url_for(scratch.dsn, "psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        with suppress(Oops), INBOX.once(session, "billing", "a"):
            session.add(Effect(name="undone"))
            raise Oops
        with INBOX.once(session, "billing", "b"):
            session.add(Effect(name="kept"))
        session.commit()
    assert marks(owner) == ["b"]
    assert effects(owner) == ["kept"]


def test_django_drops_the_on_commit_hooks_of_a_failed_block(scratch: Database, owner: psycopg.Connection[Any]) -> None:
    from django.db import transaction

    called: list[str] = []
    with django_connection(scratch.dsn), transaction.atomic():
        with suppress(Oops), INBOX.once("default", "billing", "a"):
            transaction.on_commit(lambda: called.append("undone"))
            raise Oops
        with INBOX.once("default", "billing", "b"):
            transaction.on_commit(lambda: called.append("kept"))
    assert called == ["kept"]
    assert marks(owner) == ["b"]


def test_all_spellings_of_a_uuid_are_one_event_and_other_text_is_compared_as_it_is(
    scratch: Database, owner: psycopg.Connection[Any]
) -> None:
    event_id = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    spellings: list[UUID | str] = [event_id, str(event_id), str(event_id).upper(), event_id.hex, "42", "042", "ü %s"]
    with scratch.connect(autocommit=False) as connection:
        found = []
        for each in spellings:
            with INBOX.once(connection, "billing", each) as fresh:
                found.append(fresh)
    assert found == [True, False, False, False, True, True, True]
    assert set(marks(owner)) == {str(event_id), "42", "042", "ü %s"}


def test_an_inbox_works_in_any_schema(scratch: Database, owner: psycopg.Connection[Any]) -> None:
    owner.execute(script("schema.sql", schema="100% other"))
    with scratch.connect(autocommit=False) as connection:
        for expected in (True, False):
            with Inbox(schema="100% other").once(connection, "billing", "a") as fresh:
                assert fresh is expected
    assert marks(owner) == []
    assert query(owner, 'SELECT event_id FROM "100%% other".outbox_inbox') == ["a"]
