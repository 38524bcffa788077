"""
A pytest plugin for applications that publish: what was enqueued, and what would be on the wire.

    def test_an_order_is_announced(outbox, assert_event_published):
        place_order(connection=None, order=42)
        assert_event_published("order.placed", payload={"order": 42})

`outbox`                  records instead of writing: no database, no transaction, no server is needed, and any handle
                          will do; `outbox.messages` is what was captured, decoded
`assert_event_published`  of the events in `outbox`: type, and whatever else is given
`assert_task_sent`        of the Celery tasks in `outbox`: name, args, kwargs and whatever else is given
`drain_outbox`            `drain_outbox()`: what `outbox` holds; `drain_outbox(connection)`: what a real table holds, in
                          the connection's transaction. Both empty it, and give the messages as the services would
                          send them

Active where this package is installed; the fixtures cost nothing to tests that do not ask for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from outrider.producer.event import Row
from outrider.producer.handles import adapter_for
from outrider.producer.outbox import BatchReceipt, Outbox, Receipt
from outrider.storage.message import SCHEMA_VERSION, Message

MISSING: Any = object()


@dataclass(frozen=True)
class Captured:
    """A message as it was enqueued, decoded."""

    row: Row = field(repr=False)
    event_type: str
    payload: Any
    """JSON as values, text as str; bytes as they are where the content type is unknown."""
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
        """Of a task, as it will arrive."""
        return list(self.payload["args"] if isinstance(self.payload, dict) else self.payload[0])

    @property
    def kwargs(self) -> Any:
        return self.payload["kwargs"] if isinstance(self.payload, dict) else self.payload[1]


@dataclass(frozen=True)
class Delivered:
    """A message as a broker gets it."""

    exchange: str
    routing_key: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    body: bytes
    message: Message = field(repr=False)


class RecordedOutbox:
    """What was enqueued during the test, in order."""

    def __init__(self) -> None:
        self.messages: list[Captured] = []

    @property
    def events(self) -> list[Captured]:
        return [message for message in self.messages if not message.is_task]

    @property
    def tasks(self) -> list[Captured]:
        return [message for message in self.messages if message.is_task]

    def record(self, row: Row) -> bool:
        """Whether it was new, as the unique index would tell."""
        if row["dedup_key"] is not None and any(each.dedup_key == row["dedup_key"] for each in self.messages):
            return False
        self.messages.append(_captured(row))
        return True


@pytest.fixture
def outbox(monkeypatch: pytest.MonkeyPatch) -> RecordedOutbox:
    """Everything that is enqueued in this test is recorded instead of written."""
    recorded = RecordedOutbox()

    def enqueue_row(self: Outbox, handle: Any, row: Row, event_id: UUID | None = None, **_: bool) -> Any:  # noqa: ARG001
        return _as_handle_would(handle, Receipt(UUID(row["event_id"]), recorded.record(row)))

    def enqueue_rows(self: Outbox, handle: Any, rows: list[Row], event_ids: Any = None) -> Any:  # noqa: ARG001
        written = sum(recorded.record(row) for row in rows)
        return _as_handle_would(handle, BatchReceipt([UUID(row["event_id"]) for row in rows], written))

    monkeypatch.setattr(Outbox, "enqueue_row", enqueue_row)
    monkeypatch.setattr(Outbox, "enqueue_rows", enqueue_rows)
    _record_tasks(monkeypatch)
    return recorded


@pytest.fixture
def assert_event_published(outbox: RecordedOutbox) -> Callable[..., Captured]:
    """`assert_event_published("order.placed", payload=..., count=1, routing_key=...)`; gives the (first) event."""

    def check(event_type: str, *, payload: Any = MISSING, count: int | None = None, **fields: Any) -> Captured:
        if payload is not MISSING:
            fields["payload"] = payload
        return _check("event", event_type, outbox.events, count, fields)

    return check


@pytest.fixture
def assert_task_sent(outbox: RecordedOutbox) -> Callable[..., Captured]:
    """`assert_task_sent("shop.bill", args=(42,), kwargs={}, count=1, routing_key=...)`; gives the (first) task."""

    def check(
        name: str, *, args: Any = MISSING, kwargs: Any = MISSING, count: int | None = None, **fields: Any
    ) -> Captured:
        if args is not MISSING:
            fields["args"] = list(args)
        if kwargs is not MISSING:
            fields["kwargs"] = kwargs
        return _check("task", name, outbox.tasks, count, fields)

    return check


@pytest.fixture
def drain_outbox(request: pytest.FixtureRequest) -> Callable[..., list[Delivered]]:
    """Deliver what is enqueued to a recording publisher, in process."""

    def drain(handle: Any = None, *, schema: str = "public") -> list[Delivered]:
        if handle is not None:
            return _deliver(_drain_table(handle, schema))
        recorded: RecordedOutbox = request.getfixturevalue("outbox")
        messages, recorded.messages = recorded.messages, []
        return _deliver([_message(number, each.row) for number, each in enumerate(messages, 1)])

    return drain


def _record_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are captured as in a transaction, where Celery is installed."""
    try:
        from outrider.producer.celery.task_outbox import TaskOutbox
    except ImportError:
        return

    monkeypatch.setattr(TaskOutbox, "_handle_in_transaction", lambda self: "a transaction")  # noqa: ARG005


def _as_handle_would(handle: Any, result: Any) -> Any:
    try:
        is_async = adapter_for(handle).is_async
    except (TypeError, ImportError):
        is_async = False  # None, or whatever a unit test passes

    async def later() -> Any:
        return result

    return later() if is_async else result


def _check(kind: str, name: str, messages: list[Captured], count: int | None, fields: dict[str, Any]) -> Captured:
    named = [message for message in messages if message.event_type == name]
    found = [message for message in named if all(getattr(message, key) == value for key, value in fields.items())]
    if (not found) if count is None else len(found) != count:
        wanted = f"{'no' if count is None else len(found)} {kind} {name}" + (f" with {fields}" if fields else "")
        others = "\n".join(f"  {message}" for message in named or messages) or "  nothing"
        expected = "" if count is None else f", not {count}"
        pytest.fail(f"{wanted} was enqueued{expected}; there is\n{others}", pytrace=False)
    return found[0] if found else _captured_nothing()


def _captured_nothing() -> Any:
    """What `count=0` gives: there is nothing to look at."""
    return None


def _captured(row: Row) -> Captured:
    return Captured(
        row=row,
        event_type=row["event_type"],
        payload=_decode(row),
        headers=json.loads(row["headers"]),
        exchange=row["exchange"],
        routing_key=row["routing_key"],
        ordering_key=row["ordering_key"],
        dedup_key=row["dedup_key"],
    )


def _decode(row: Row) -> Any:
    payload: bytes = row["payload"]
    compression = json.loads(row["headers"]).get("compression")
    if compression is None and row["content_type"] == "application/json":
        return json.loads(payload)
    if compression is None and row["content_type"] == "text/plain":
        return payload.decode(row["content_encoding"])
    try:
        from kombu.compression import decompress
        from kombu.serialization import loads
    except ImportError:
        return payload
    body = decompress(payload, compression) if compression else payload
    # What this very test has enqueued can be trusted, in any serializer.
    return loads(body, row["content_type"], row["content_encoding"], accept=[row["content_type"]])


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
    rows = adapter.fetch(handle, Statement(Queries(schema)["drain"]), {}, lambda _: None)
    return [Message._make(row)._replace(payload=bytes(row[9])) for row in rows]


def _deliver(messages: list[Message]) -> list[Delivered]:
    from outrider.delivery.broker_message import to_broker_message

    delivered = []
    for message in messages:
        wire = to_broker_message(message, message.created_at)
        delivered.append(
            Delivered(wire.exchange, wire.routing_key, wire.headers, wire.properties, message.payload, message)
        )
    return delivered
