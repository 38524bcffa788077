"""The inbox without a server: refused arguments and their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool, NullConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from outrider.consumer.inbox import Inbox, open_transaction
from outrider.consumer.inbox.transactions import is_async

NOWHERE = "host=nowhere.invalid"
ENGINE = "postgresql+psycopg://nowhere.invalid/none"


@pytest.mark.parametrize(
    ("consumer", "event_id", "error", "text"),
    [
        ("", "e", ValueError, "consumer must be 1 to 255 bytes"),
        ("ü" * 128, "e", ValueError, "consumer must be 1 to 255 bytes"),
        ("c", "", ValueError, "event_id must be 1 to 1000 bytes"),
        ("c", "x" * 1001, ValueError, "event_id must be 1 to 1000 bytes"),
        ("c", "a\0b", ValueError, "without NUL"),
        ("c", None, TypeError, "event_id is a NoneType"),
        (7, "e", TypeError, "consumer is a int"),
    ],
)
def test_an_invalid_consumer_or_event_id_is_refused(
    consumer: Any, event_id: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Inbox().once(Session(), consumer, event_id)


def test_an_unknown_handle_is_refused_with_a_list_of_handles() -> None:
    with pytest.raises(TypeError, match=r"is not a handle; accepted are: a psycopg Connection"):
        Inbox().once(object(), "c", "e")


def test_the_error_for_the_wrong_with_statement_names_the_right_one() -> None:
    async def enter(block: Any) -> None:
        async with block:
            pass

    with pytest.raises(TypeError, match=r"AsyncSession is asynchronous: write `async with`"):
        Inbox().once(AsyncSession(), "c", "e").__enter__()
    with pytest.raises(TypeError, match=r"Session is synchronous: write `with`"):
        asyncio.run(enter(Inbox().once(Session(), "c", "e")))
    with pytest.raises(TypeError, match=r"str is synchronous: write `with`"):
        asyncio.run(enter(open_transaction("default")))


def test_is_async_recognises_every_kind_of_database() -> None:
    async def pools() -> list[bool | None]:
        return [is_async(AsyncConnectionPool(NOWHERE, open=False))]

    assert asyncio.run(pools()) == [True]
    engine, async_engine = create_engine(ENGINE), create_async_engine(ENGINE)
    assert [is_async(each) for each in (async_engine, async_sessionmaker(async_engine))] == [True, True]
    pool, null_pool = ConnectionPool(NOWHERE, open=False), NullConnectionPool(NOWHERE, open=False)
    synchronous = ("default", engine, sessionmaker(engine), pool, null_pool)
    assert [is_async(each) for each in synchronous] == [False] * 5
    assert is_async(lambda: psycopg.connect(NOWHERE)) is None


@pytest.mark.parametrize("database", [None, 7, "postgresql://user:secret@host/db", "host=x password=secret"])
def test_an_unknown_database_is_refused_without_quoting_a_password(database: Any) -> None:
    with pytest.raises(TypeError, match="accepted are: a psycopg_pool ConnectionPool") as refused:
        open_transaction(database)
    assert "secret" not in str(refused.value)


async def opens_later() -> None: ...


@pytest.mark.parametrize("opens", [opens_later, object])
def test_a_function_that_opens_something_else_is_refused(opens: Callable[[], Any]) -> None:
    async def enter() -> None:
        async with open_transaction(opens):
            pass

    with pytest.raises(TypeError):
        open_transaction(opens).__enter__()
    with pytest.raises(TypeError):
        asyncio.run(enter())
