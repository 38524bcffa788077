"""
A pytest plugin for tests of applications that publish.

    def test_an_order_is_announced(outbox, assert_event_published):
        place_order(connection=None, order=42)
        assert_event_published("order.placed", payload={"order": 42})

`outbox`                  records messages instead of writing them: no database and no transaction is needed, and any
                          handle is accepted; `outbox.messages` are the recorded messages, decoded. A message disappears
                          when the transaction or savepoint that it belongs to is rolled back (Django, SQLAlchemy's
                          sessions)
`assert_event_published`  checks the events in `outbox` by type, and by any other fields that are given
`assert_task_sent`        checks the Celery tasks in `outbox` by name, args, kwargs and any other fields
`drain_outbox`            `drain_outbox()` removes and returns the messages in `outbox`, `drain_outbox(connection)`
                          those in a real table, in the connection's transaction; both as the services would publish
                          them
`fake_relay`              `fake_relay(app)` drains as well, and runs each task of this Celery application at once, with
                          the tasks that follow; `fake_relay(function)` calls a function with each message

pytest loads this plugin where the package is installed. The fixtures do nothing unless a test requests them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from outrider.producer.handles import adapter_for, no_guard
from outrider.producer.outbox import Outbox
from outrider.producer.rollback_watch import RollbackWatch, watch_django, watch_sqlalchemy
from outrider.producer.row import Row
from outrider.storage.message import SCHEMA_VERSION, Message

MISSING: Any = object()
MOST_DELIVERED = 10_000


@dataclass(frozen=True)
class RecordedMessage:
    """A message as it was enqueued, decoded."""

    row: Row = field(repr=False)
    event_type: str
    payload: Any
    """JSON as values, text as str, other content types as bytes."""
    headers: dict[str, Any]
    exchange: str
    routing_key: str
    ordering_key: str | None
    dedup_key: str | None

    @property
    def is_task(self) -> bool:
        return "task" in self.headers or (isinstance(self.payload, dict) and "task" in self.payload)

    @property
    def args(self) -> Any:
        """The positional arguments of a task, as the worker gets them."""
        return list(self.payload["args"] if isinstance(self.payload, dict) else self.payload[0])

    @property
    def kwargs(self) -> Any:
        return self.payload["kwargs"] if isinstance(self.payload, dict) else self.payload[1]


@dataclass(frozen=True)
class PublishedMessage:
    """A message as the services would publish it."""

    exchange: str
    routing_key: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    body: bytes
    message: Message = field(repr=False)


class OutboxRecorder:
    """The messages that the test enqueued, in order."""

    def __init__(self) -> None:
        self.messages: list[RecordedMessage] = []
        self.watch = RollbackWatch()

    @property
    def events(self) -> list[RecordedMessage]:
        return [message for message in self.messages if not message.is_task]

    @property
    def tasks(self) -> list[RecordedMessage]:
        return [message for message in self.messages if message.is_task]

    def record(self, row: Row, handle: Any = None) -> bool:
        """Record a row, unless a message with its dedup_key is recorded already. Returns whether it was recorded."""
        if row["dedup_key"] is not None and any(each.dedup_key == row["dedup_key"] for each in self.messages):
            return False
        message = _decoded(row)
        self.messages.append(message)
        self.watch.record(handle, partial(self._forget, message))
        return True

    def _forget(self, message: RecordedMessage) -> None:
        self.messages = [each for each in self.messages if each is not message]


@pytest.fixture
def outbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[OutboxRecorder]:
    """Records messages that are enqueued in this test, instead of writing them."""
    recorder = OutboxRecorder()

    def write_row(self: Outbox, handle: Any, row: Row) -> Any:  # noqa: ARG001
        return _awaitable_if_async(handle, int(recorder.record(row, handle)))

    def write_rows(self: Outbox, handle: Any, rows: list[Row]) -> Any:  # noqa: ARG001
        return _awaitable_if_async(handle, sum(recorder.record(row, handle) for row in rows))

    monkeypatch.setattr(Outbox, "write_row", write_row)
    monkeypatch.setattr(Outbox, "write_rows", write_rows)
    _record_tasks(monkeypatch, recorder)
    if "django.db" in sys.modules:
        watch_django(recorder.watch, monkeypatch.setattr)
    stop = watch_sqlalchemy(recorder.watch) if "sqlalchemy.orm" in sys.modules else None
    yield recorder
    if stop is not None:
        stop()


@pytest.fixture
def assert_event_published(outbox: OutboxRecorder) -> Callable[..., Any]:
    """`assert_event_published("order.placed", payload=..., count=1, routing_key=...)`; returns the (first) event."""

    def check(event_type: str, *, payload: Any = MISSING, count: int | None = None, **fields: Any) -> Any:
        if payload is not MISSING:
            fields["payload"] = payload
        return _check("event", event_type, outbox.events, count, fields)

    return check


@pytest.fixture
def assert_task_sent(outbox: OutboxRecorder) -> Callable[..., Any]:
    """`assert_task_sent("shop.bill", args=(42,), kwargs={}, count=1, routing_key=...)`; returns the (first) task."""

    def check(name: str, *, args: Any = MISSING, kwargs: Any = MISSING, count: int | None = None, **fields: Any) -> Any:
        if args is not MISSING:
            fields["args"] = list(args)
        if kwargs is not MISSING:
            fields["kwargs"] = kwargs
        return _check("task", name, outbox.tasks, count, fields)

    return check


@pytest.fixture
def drain_outbox(request: pytest.FixtureRequest) -> Callable[..., list[PublishedMessage]]:
    """Removes enqueued messages and returns them as the services would publish them."""

    def drain(handle: Any = None, *, schema: str = "public") -> list[PublishedMessage]:
        if handle is not None:
            return _publish(_drain_table(handle, schema))
        recorder: OutboxRecorder = request.getfixturevalue("outbox")
        messages, recorder.messages = recorder.messages, []
        return _publish([_message(number, each.row) for number, each in enumerate(messages, 1)])

    return drain


@pytest.fixture
def fake_relay(drain_outbox: Callable[..., list[PublishedMessage]]) -> Callable[..., list[PublishedMessage]]:
    """
    `fake_relay(target)` or `fake_relay(target, connection)`: delivers what `drain_outbox` returns, and what is enqueued
    meanwhile, until nothing is left. Returns the messages.

    target  a Celery application: its tasks run at once, and an exception of a task is raised here; other messages are
            only returned. Or a function, which is called with each PublishedMessage.
    """

    def deliver(target: Any, handle: Any = None, *, schema: str = "public") -> list[PublishedMessage]:
        deliver_one = partial(_run_task, target) if hasattr(target, "tasks") else target
        delivered: list[PublishedMessage] = []
        while messages := drain_outbox(handle, schema=schema):
            for message in messages:
                deliver_one(message)
            delivered += messages
            if len(delivered) > MOST_DELIVERED:
                pytest.fail(f"more than {MOST_DELIVERED} messages were delivered: each enqueues another", pytrace=False)
        return delivered

    return deliver


def _run_task(app: Any, published: PublishedMessage) -> None:
    from celery import signature

    task = app.tasks.get(published.headers.get("task"))
    if task is None:
        return
    message = published.message
    content = _decode(published.body, message.content_type, message.content_encoding, published.headers)
    args, kwargs, embedded = content
    links = list(embedded.get("callbacks") or ())
    if chain := list(embedded.get("chain") or ()):
        links.append(signature(chain.pop(), app=app).clone(chain=chain))  # as a worker does: the last one is next
    errbacks = embedded.get("errbacks")
    task.apply(args, kwargs, task_id=published.headers["id"], link=links, link_error=errbacks, throw=True)


def _record_tasks(monkeypatch: pytest.MonkeyPatch, recorder: OutboxRecorder) -> None:
    """Where Celery is installed, tasks are captured as if in a transaction."""
    try:
        from outrider.producer.celery.task_outbox import TaskOutbox
    except ImportError:
        return

    def handle(self: TaskOutbox) -> Any:
        return next(reversed(self._bound.get()), None) or self.alias or "a transaction"

    def waiting_task_id(self: TaskOutbox, handle: Any, dedup_key: str) -> Any:  # noqa: ARG001
        [waiting] = [each for each in recorder.tasks if each.dedup_key == dedup_key]
        return waiting.headers.get("id") or waiting.row["event_id"]

    monkeypatch.setattr(TaskOutbox, "_handle_in_transaction", handle)
    monkeypatch.setattr(TaskOutbox, "_may_read_waiting_task", lambda self, handle: True)  # noqa: ARG005
    monkeypatch.setattr(TaskOutbox, "_waiting_task_id", waiting_task_id)


def _awaitable_if_async(handle: Any, result: Any) -> Any:
    try:
        is_async = adapter_for(handle).is_async
    except (TypeError, ImportError):
        is_async = False  # a unit test may pass None, or anything else

    async def later() -> Any:
        return result

    return later() if is_async else result


def _check(kind: str, name: str, messages: list[RecordedMessage], count: int | None, fields: dict[str, Any]) -> Any:
    named = [message for message in messages if message.event_type == name]
    found = [message for message in named if all(getattr(message, key) == value for key, value in fields.items())]
    if (not found) if count is None else len(found) != count:
        wanted = f"{'no' if count is None else len(found)} {kind} {name}" + (f" with {fields}" if fields else "")
        others = "\n".join(f"  {message}" for message in named or messages) or "  nothing"
        expected = "" if count is None else f", not {count}"
        pytest.fail(f"{wanted} was enqueued{expected}; the outbox has\n{others}", pytrace=False)
    return found[0] if found else None


def _decoded(row: Row) -> RecordedMessage:
    headers = json.loads(row["headers"])
    return RecordedMessage(
        row=row,
        event_type=row["event_type"],
        payload=_decode(row["payload"], row["content_type"], row["content_encoding"], headers),
        headers=headers,
        exchange=row["exchange"],
        routing_key=row["routing_key"],
        ordering_key=row["ordering_key"],
        dedup_key=row["dedup_key"],
    )


def _decode(payload: bytes, content_type: str, content_encoding: str, headers: dict[str, Any]) -> Any:
    compression = headers.get("compression")
    if compression is None and content_type == "application/json":
        return json.loads(payload)
    if compression is None and content_type == "text/plain":
        return payload.decode(content_encoding)
    try:
        from kombu.compression import decompress
        from kombu.serialization import loads
    except ImportError:
        return payload
    body = decompress(payload, compression) if compression else payload
    # The test enqueued it itself, so any serializer is safe to load.
    return loads(body, content_type, content_encoding, accept=[content_type])


def _message(number: int, row: Row) -> Message:
    values: dict[str, Any] = {name: row.get(name) for name in Message._fields}
    return Message(
        **{
            **values,
            "id": number,
            "schema_version": SCHEMA_VERSION,
            "created_at": 0,
            "expires_at": None,
            "next_attempt_at": 0,
            "attempts": 0,
            "owner": "relay",
        }
    )


def _drain_table(handle: Any, schema: str) -> list[Message]:
    from outrider.producer.statement import Statement
    from outrider.storage.sql_files import Queries

    adapter = adapter_for(handle)
    if adapter.is_async:
        raise TypeError("drain_outbox takes a synchronous handle")
    rows = adapter.fetch(handle, Statement(Queries(schema)["drain"]), {}, no_guard)
    return [Message._make(row)._replace(payload=bytes(row[9])) for row in rows]


def _publish(messages: list[Message]) -> list[PublishedMessage]:
    from outrider.delivery.broker_message import to_broker_message

    delivered = []
    for message in messages:
        wire = to_broker_message(message, message.created_at)
        delivered.append(
            PublishedMessage(wire.exchange, wire.routing_key, wire.headers, wire.properties, message.payload, message)
        )
    return delivered
