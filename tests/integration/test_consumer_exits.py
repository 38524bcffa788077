"""A handler that raises SystemExit, KeyboardInterrupt or GeneratorExit fails its message, and the worker goes on."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from outrider.consumer import Consumer
from outrider.consumer.delivery import ATTEMPT, ERROR, REASON
from tests.fixtures.database import Database
from tests.fixtures.worker import Work

EXITS = {"SystemExit": SystemExit(3), "KeyboardInterrupt": KeyboardInterrupt(), "GeneratorExit": GeneratorExit()}


def leave(how: str) -> None:
    if how == "sys.exit":
        sys.exit("the handler had enough")
    if how != "stay":
        raise EXITS[how]


def plain(body: str) -> None:
    leave(body)


async def at_once(body: str) -> None:
    leave(body)


async def after_a_wait(body: str) -> None:
    await asyncio.sleep(0.001)
    leave(body)


@pytest.mark.parametrize("handler", [plain, at_once, after_a_wait])
def test_it_is_logged_and_retried_and_dead_at_last(work: Work, handler: Any) -> None:
    with capture_logs() as logs, work.worker(Consumer(handler, queue=work.queue, retry_delays=("20ms",))):
        for how in (*EXITS, "sys.exit"):
            work.publish(f'"{how}"'.encode(), message_id=how)
        work.wait_until_processed("max attempts", 4)
        work.publish(b'"stay"')  # the worker still works
        work.wait_until_processed("done")
    letters = {letter.message_id: letter.headers for letter in work.broker.get_all(work.dead_letters, 4, 30)}
    assert {name: headers[ERROR] for name, headers in letters.items()} == {
        "SystemExit": "SystemExit: 3",
        "KeyboardInterrupt": "KeyboardInterrupt",
        "GeneratorExit": "RuntimeError: the handler raised GeneratorExit" if handler is plain else "GeneratorExit",
        "sys.exit": "SystemExit: the handler had enough",
    }
    assert {(headers[REASON], headers[ATTEMPT]) for headers in letters.values()} == {("max attempts", 2)}
    assert work.processed("retried") == 4
    logged = [(entry["event"], entry["event_id"]) for entry in logs if entry["event"] in ("failed", "buried")]
    assert sorted(logged) == sorted((event, how) for event in ("failed", "buried") for how in letters)
    assert not [entry for entry in logs if entry["event"] == "session_ended"]


@pytest.mark.parametrize("is_async", [False, True])
def test_with_the_inbox_its_effects_and_its_mark_are_rolled_back(
    work: Work, database: Database, is_async: bool
) -> None:
    insert = "INSERT INTO effect VALUES (%s)"

    def apply(body: str, event_id: str, attempt: int, connection: Any) -> None:
        connection.execute(insert, [event_id])
        if attempt == 1:
            leave(body)

    async def apply_async(body: str, event_id: str, attempt: int, connection: Any) -> None:
        await connection.execute(insert, [event_id])
        if attempt == 1:
            leave(body)

    def connect() -> Any:
        return psycopg.AsyncConnection.connect(database.dsn) if is_async else psycopg.connect(database.dsn)

    consumer: Consumer[..., Any] = Consumer(
        apply_async if is_async else apply, queue=work.queue, inbox=True, retry_delays=("20ms",)
    )
    with database.connect() as connection:
        connection.execute("CREATE TABLE effect (event_id text)")
        with work.worker(consumer, database=connect):
            for how in EXITS:
                work.publish(f'"{how}"'.encode(), message_id=how)
            work.wait_until_processed("done", 3)
        effects = connection.execute("SELECT event_id FROM effect ORDER BY 1").fetchall()
    assert effects == [(how,) for how in sorted(EXITS)]
    assert work.processed("retried") == 3
    assert work.processed("duplicate") == 0
