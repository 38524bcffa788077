"""The pytest plugin, used as an application would: without any server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from celery import group

from outrider import Event, Outbox
from outrider.producer.celery import OutboxCelery, TaskOutbox
from outrider.producer.pytest_plugin import (  # noqa: F401
    OutboxRecorder,
    assert_event_published,
    assert_task_sent,
    drain_outbox,
    outbox,
)

Check = Callable[..., Any]


NO_HANDLE: Any = None


def work(x: int, y: int = 0) -> int:
    return x + y


@pytest.fixture
def task() -> Any:
    app = OutboxCelery("shop", broker="amqp://nowhere", set_as_current=False, outbox=TaskOutbox())
    return app.task(name="shop.work", shared=False)(work)


def test_events_are_recorded_without_a_database(outbox: OutboxRecorder, assert_event_published: Check) -> None:  # noqa: F811
    Outbox("shop").publish(NO_HANDLE, "order.placed", {"order": 42}, aggregate=("order", 42))
    Outbox("shop").publish_many(NO_HANDLE, [Event(event_type="order.paid", payload=b"\x00")])
    event = assert_event_published("order.placed", payload={"order": 42}, count=1, exchange="shop")
    assert event.ordering_key == "order:42"
    assert_event_published("order.paid", payload=b"\x00")
    assert_event_published("order.shipped", count=0)
    assert [message.event_type for message in outbox.events] == ["order.placed", "order.paid"]


def test_a_failed_assertion_shows_the_recorded_messages(outbox: OutboxRecorder, assert_event_published: Check) -> None:  # noqa: F811
    Outbox().publish(NO_HANDLE, "order.placed", {"order": 1})
    with pytest.raises(pytest.fail.Exception, match=r"no event order.placed with .*'order': 2.* was enqueued"):
        assert_event_published("order.placed", payload={"order": 2})
    with pytest.raises(pytest.fail.Exception, match=r"1 event order.placed was enqueued, not 2"):
        assert_event_published("order.placed", count=2)


def test_a_dedup_key_is_respected(outbox: OutboxRecorder) -> None:  # noqa: F811
    assert Outbox().publish(NO_HANDLE, "a", {}, dedup_key="k").new
    assert not Outbox().publish(NO_HANDLE, "b", {}, dedup_key="k").new
    assert len(outbox.messages) == 1


def test_an_asynchronous_handle_is_awaited(outbox: OutboxRecorder) -> None:  # noqa: F811
    handle = psycopg.AsyncConnection.__new__(psycopg.AsyncConnection)

    async def scenario() -> Any:
        return await Outbox().publish(handle, "a", {})

    assert asyncio.run(scenario()).new
    assert len(outbox.messages) == 1


def test_tasks_are_recorded_in_any_serializer(task: Any, outbox: OutboxRecorder, assert_task_sent: Check) -> None:  # noqa: F811
    task.delay(1, y=2)
    task.apply_async((3,), serializer="pickle", compression="gzip")
    group(task.s(n) for n in (4, 5)).apply_async()
    assert_task_sent("shop.work", args=(1,), kwargs={"y": 2}, count=1)
    assert assert_task_sent("shop.work", args=(3,)).routing_key == "celery"
    assert_task_sent("shop.work", count=4)
    assert len(outbox.tasks) == 4
    with pytest.raises(pytest.fail.Exception, match=r"no task shop\.other was enqueued"):
        assert_task_sent("shop.other")


def test_recorded_messages_can_be_drained(task: Any, drain_outbox: Check, outbox: OutboxRecorder) -> None:  # noqa: F811
    receipt = Outbox("shop").publish(NO_HANDLE, "order.placed", {"order": 42})
    result = task.delay(1)
    event, sent = drain_outbox()
    assert (event.exchange, event.routing_key, event.body) == ("shop", "order.placed", b'{"order":42}')
    assert event.properties["message_id"] == str(receipt.event_id)
    assert event.properties["type"] == "order.placed"
    assert sent.headers["id"] == result.id
    assert outbox.messages == []
    assert drain_outbox() == []
