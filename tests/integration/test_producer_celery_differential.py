"""
What comes out of the outbox is what Celery would have sent: the same body, headers, properties, exchange, routing key
and declarations, for every call in every configuration. The delivery adds message_id, type and timestamp.

One application publishes to a transport that writes down what py-amqp would send. The other captures into PostgreSQL,
from where the rows are read and published with the services' code (outrider.delivery).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from amqp.basic_message import Message as AmqpMessage
from celery import Celery, chain, chord, group
from celery.canvas import Signature, StampingVisitor
from kombu import Connection, Exchange, Queue
from kombu.common import Broadcast

from outrider.delivery.broker_message import to_broker_message
from outrider.delivery.declarations import parse_declarations
from outrider.producer.celery import OutboxCelery, TaskOutbox
from outrider.storage.message import Message
from outrider.storage.server_time import from_datetime
from outrider.storage.sql_files import Queries
from tests.fixtures.database import Database
from tests.fixtures.recording_transport import Transport, register

NOW = datetime(2030, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
ADDITIONS = ("message_id", "type", "timestamp")

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "topic exchange, quorum queues, native delayed delivery, routes, compression": {
        "task_queues": [
            Queue("a", Exchange("work", type="topic"), routing_key="a.#", queue_arguments={"x-queue-type": "quorum"}),
            Queue("b", Exchange("work", type="topic"), routing_key="b.#", queue_arguments={"x-queue-type": "quorum"}),
        ],
        "task_default_queue": "a",
        "task_default_exchange": "work",
        "task_default_exchange_type": "topic",
        "task_default_routing_key": "a.x",
        "task_default_queue_type": "quorum",
        "task_routes": {"tests.add": {"queue": "b", "routing_key": "b.add"}},
        "task_compression": "gzip",
    },
    "protocol 1, pickle, a result backend, priorities": {
        "task_protocol": 1,
        "task_serializer": "pickle",
        "result_backend": "cache+memory://",
        "task_queue_max_priority": 10,
        "task_default_priority": 3,
    },
    "rpc results, events": {"result_backend": "rpc://", "task_send_sent_event": True},
    "yaml, zlib": {"task_serializer": "yaml", "task_compression": "zlib"},
    "msgpack, transient, not durable, a result backend, bindings": {
        "task_serializer": "msgpack",
        "result_backend": "cache+memory://",
        "task_default_delivery_mode": 1,
        "task_ignore_result": True,
        "task_queues": [
            Queue(
                "celery",
                Exchange(
                    "celery", type="direct", durable=False, delivery_mode=1, arguments={"alternate-exchange": "x"}
                ),
                routing_key="celery",
                durable=False,
                auto_delete=True,
                expires=60,
                message_ttl=30,
                max_length=5,
                max_priority=4,
                binding_arguments={"k": "v"},
            )
        ],
    },
}


class Stamps(StampingVisitor):  # type: ignore[misc]
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {"tenant": "t-1", "stamped_headers": ["tenant"]}


def calls(app: Any) -> dict[str, Callable[[], Any]]:
    """Calls as applications make them. Only `add` and `note` are registered tasks."""
    add, note = app.tasks["tests.add"], app.tasks["tests.note"]
    topic = Exchange("events", type="topic")

    def stamped() -> Any:
        sig = add.s(1, 2)
        sig.stamp(Stamps())
        return sig.apply_async()

    return {
        "delay": lambda: add.delay(1, 2),
        "keyword arguments": lambda: add.delay(x=1, y=2),
        "unicode and nesting": lambda: note.delay({"ä": ["\u2028", None, 1.5, {"deep": [True]}]}),
        "a task id of one's own": lambda: add.apply_async((1, 2), task_id="my-id"),
        "arguments as a list": lambda: add.apply_async([1, 2]),
        "no arguments": lambda: note.apply_async(typing=False),
        "text to escape": lambda: note.delay('it\'s \\ "so"\n\t\x7f'),
        "long text": lambda: note.delay("word " * 1000),
        "numbers and nothing": lambda: note.delay([1, -2.5, True, None, 10**20]),
        "ids of a family": lambda: add.apply_async((1, 2), root_id="root", parent_id="parent", group_id="family"),
        "partial signature": lambda: add.s(1).delay(2),
        "immutable signature": lambda: add.si(1, 2).apply_async(priority=1),
        "signature from JSON": lambda: Signature.from_dict(json.loads(json.dumps(add.s(1, 2))), app=app).delay(),
        "a group in a group": lambda: group(add.s(1, 2), group(add.s(3, 4), note.s("a"))).apply_async(),
        "a link in a chain": lambda: chain(add.s(1, 2).on_error(note.si("failed")), add.s(3)).apply_async(),
        "expires as text": lambda: add.apply_async((1, 2), expires=(NOW + timedelta(seconds=9)).isoformat()),
        "countdown": lambda: add.apply_async((1, 2), countdown=90),
        "countdown of a task that is not routed": lambda: note.apply_async(("x",), countdown=3.5),
        "eta": lambda: add.apply_async((1, 2), eta=NOW + timedelta(hours=1)),
        "eta in another time zone": lambda: add.apply_async((1, 2), eta=(NOW + timedelta(hours=1)).astimezone()),
        "expires in seconds": lambda: add.apply_async((1, 2), expires=30),
        "expires at an instant": lambda: add.apply_async((1, 2), expires=NOW + timedelta(seconds=61.25)),
        "expires a fraction of a second": lambda: add.apply_async((1, 2), expires=1.001),
        "expired already": lambda: add.apply_async((1, 2), expires=NOW - timedelta(seconds=1)),
        "eta and expires": lambda: add.apply_async((1, 2), countdown=5, expires=50),
        "priority": lambda: add.apply_async((1, 2), priority=7),
        "link": lambda: add.apply_async((1, 2), link=add.s(3)),
        "link_error": lambda: add.apply_async((1, 2), link_error=note.si("failed")),
        "several links": lambda: add.apply_async((1, 2), link=[add.s(3), add.s(4)], link_error=[note.si("failed")]),
        "a queue by name": lambda: add.apply_async((1, 2), queue="celery" if "celery" in app.amqp.queues else "b"),
        "a queue as an object": lambda: add.apply_async(
            (1, 2), queue=Queue("obj", topic, routing_key="obj.*", queue_arguments={"x-max-length": 9})
        ),
        "a queue with bindings": lambda: add.apply_async((1, 2), queue=Queue("many", [topic.binding("k")])),
        "a broadcast queue": lambda: add.apply_async((1, 2), queue=Broadcast("everyone")),
        "exchange and routing key": lambda: add.apply_async((1, 2), exchange="events", routing_key="order.placed"),
        "an exchange as an object": lambda: add.apply_async((1, 2), exchange=topic, routing_key="order.placed"),
        "declare": lambda: add.apply_async(
            (1, 2), exchange=topic, routing_key="x", declare=[topic, Queue("q2", topic, routing_key="x")]
        ),
        "headers": lambda: add.apply_async((1, 2), headers={"tenant": "t", "n": 1, "nested": {"a": [1, None]}}),
        "stamps": stamped,
        "serializer json": lambda: add.apply_async((1, 2), serializer="json"),
        "serializer pickle": lambda: note.apply_async(({1, 2},), serializer="pickle"),
        "serializer yaml": lambda: add.apply_async((1, 2), serializer="yaml"),
        "serializer msgpack": lambda: add.apply_async((1, 2), serializer="msgpack"),
        "types that kombu's JSON knows": lambda: note.apply_async(
            ([NOW, NOW.date(), timedelta(1).total_seconds(), b"bytes"],), serializer="json"
        ),
        "compression zlib": lambda: note.apply_async(("x" * 2000,), compression="zlib"),
        "compression bzip2": lambda: note.apply_async(("x" * 2000,), compression="bzip2"),
        "ignore_result": lambda: add.apply_async((1, 2), ignore_result=True),
        "shadow name": lambda: add.apply_async((1, 2), shadow="shadow"),
        "time limits": lambda: add.apply_async((1, 2), time_limit=10, soft_time_limit=5),
        "transient": lambda: add.apply_async((1, 2), delivery_mode="transient"),
        "reply_to and correlation id": lambda: add.apply_async((1, 2), reply_to="here", correlation_id="c-1"),
        "AMQP properties": lambda: add.apply_async((1, 2), app_id="shop", user_id="guest", cluster_id="c"),
        "send_task": lambda: app.send_task("elsewhere.work", args=[1], kwargs={"k": "v"}),
        "send_task with eta": lambda: app.send_task("elsewhere.work", eta=NOW + timedelta(days=40)),
        "signature": lambda: Signature("elsewhere.work", args=(1,), app=app).delay(),
        "signature with options": lambda: add.s(1, 2).set(priority=2, countdown=4).apply_async(),
        "group": lambda: group(add.s(n, n) for n in range(3)).apply_async(),
        "group with countdown": lambda: group(add.s(n, n) for n in range(2)).apply_async(countdown=10),
        "chain": lambda: chain(add.s(1, 2), add.s(3), note.s()).apply_async(),
        "chain with group in it": lambda: chain(add.s(1, 2), group(add.s(3), add.s(4))).apply_async(),
        "chunks": lambda: add.chunks([(n, n) for n in range(5)], 2).apply_async(),
        "map": lambda: note.map(["a", "b"]).apply_async(),
        "starmap": lambda: add.starmap([(1, 2), (3, 4)]).apply_async(),
        "argsrepr": lambda: add.apply_async((1, 2), argsrepr="(<secret>)", kwargsrepr="{}"),
        "publish options that stay here": lambda: add.apply_async(
            (1, 2), retry=False, retry_policy={"max_retries": 1}, mandatory=True, confirm_timeout=3
        ),
    }


CHORDS: dict[str, Callable[[Any], Any]] = {
    "chord": lambda app: chord([app.tasks["tests.add"].s(n, n) for n in range(3)])(app.tasks["tests.note"].s()),
    "chord in a chain": lambda app: chain(
        app.tasks["tests.add"].s(1, 2),
        chord([app.tasks["tests.add"].s(3), app.tasks["tests.add"].s(4)], app.tasks["tests.note"].s()),
    ).apply_async(),
}


@pytest.fixture
def same_every_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Both applications get the same ids and the same time; call it before each run of a call."""
    register()
    monkeypatch.setattr(Celery, "now", lambda self: NOW)
    monkeypatch.setattr(Celery, "thread_oid", "11111111-1111-1111-1111-111111111111")
    monkeypatch.setattr(Celery, "oid", "11111111-1111-1111-1111-111111111111")
    monkeypatch.setattr("celery.app.base.LamportClock.forward", lambda self: 7, raising=False)

    own_ids = count(1)  # rows of Celery's events get ids too, which must not shift the ids of tasks
    monkeypatch.setattr("outrider.producer.event.uuid4", lambda: UUID(int=next(own_ids)))

    def restart() -> None:
        numbers = count()
        monkeypatch.setattr(os, "urandom", lambda n: hashlib.sha256(str(next(numbers)).encode()).digest()[:n])

    return restart


def add(x: int, y: int) -> int:
    return x + y


def note(text: Any) -> Any:
    return text


def make_app(kind: Any, configuration: dict[str, Any], **options: Any) -> Any:
    app = kind("tests", broker="recording://", set_as_current=False, **options)
    app.conf.update(accept_content=["json", "pickle", "yaml", "msgpack"], **configuration)
    app.task(name="tests.add", shared=False)(add)
    app.task(name="tests.note", shared=False)(note)
    app.finalize()
    return app


@pytest.fixture(params=list(CONFIGURATIONS.values()), ids=list(CONFIGURATIONS))
def configuration(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::celery.exceptions.SecurityWarning")
def test_what_leaves_the_outbox_is_what_celery_would_have_sent(
    configuration: dict[str, Any], database: Database, same_every_time: Callable[[], None]
) -> None:
    outbox = TaskOutbox(outside_transaction="raise")
    stock = make_app(Celery, configuration)
    capturing = make_app(OutboxCelery, configuration, outbox=outbox)
    stock_calls, captured_calls = calls(stock), calls(capturing)
    if configuration.get("result_backend") == "cache+memory://":
        for name, chord_call in CHORDS.items():
            stock_calls[name] = partial(chord_call, stock)
            captured_calls[name] = partial(chord_call, capturing)
    different: list[str] = []
    with database.connect(autocommit=False) as connection:
        for name, call in stock_calls.items():
            same_every_time()
            with stock.producer_pool.acquire() as pooled:
                pooled.connection.declared_entities.clear()  # kombu declares once per connection
            expected_result = outcome(call)
            expected = [readable(entry) for entry in once_each(Transport.take())]
            assert expected or "Error" in expected_result, f"{name} sent nothing"
            if "Error" in expected_result:
                # rpc:// declares its reply queue before the serializer fails: nothing is sent, and nothing is a row.
                expected = [entry for entry in expected if entry[0] == "publish"]
            for time in ("first", "second"):  # what is remembered from the first call must not change the second
                same_every_time()
                with outbox.session(connection):
                    result = outcome(captured_calls[name])
                assert Transport.take() == [], f"{name} reached the transport at enqueue"
                assert result == expected_result, name
                found = [readable(entry) for entry in once_each(list(replay(connection)))]
                if found != expected:
                    different.append(f"{name}, {time} time: {first_difference(expected, found)}")
    print(f"{len(stock_calls)} calls were compared, each made twice")
    assert not different, f"{len(different)} of {len(stock_calls)} calls differ:\n" + "\n".join(different)


def first_difference(expected: Any, found: Any, path: str = "") -> str:
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = [key for key in {**expected, **found} if expected.get(key, ...) != found.get(key, ...)]
        return first_difference(expected.get(keys[0]), found.get(keys[0]), f"{path}.{keys[0]}")
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple) and len(expected) == len(found):
        index = next(n for n, (left, right) in enumerate(zip(expected, found, strict=True)) if left != right)
        return first_difference(expected[index], found[index], f"{path}[{index}]")
    return f"at {path}: expected {expected!r}, found {found!r}"[:1000]


def outcome(call: Callable[[], Any]) -> str:
    """The result of the call, or its error: a serializer can refuse the arguments."""
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def replay(connection: Any) -> Iterator[tuple[Any, ...]]:
    """Read the rows, publish them with the services' code to the recording transport, return what it recorded."""
    columns = Queries("public")["message_columns"]
    rows = connection.execute(f"SELECT {columns} FROM outbox AS o ORDER BY o.id").fetchall()
    connection.execute("DELETE FROM outbox")
    now = from_datetime(NOW)
    with Connection("recording://") as broker, broker.channel() as channel:
        for row in rows:
            message = Message._make(row)._replace(created_at=now)
            for entity in parse_declarations(message.declarations) if message.declarations else ():
                entity.declare(channel=channel)
            wire = to_broker_message(message, now)
            properties = {name: value for name, value in wire.properties.items() if name not in ADDITIONS}
            if isinstance(message.payload, bytes):
                properties["application_headers"] = wire.headers
            channel.basic_publish(AmqpMessage(message.payload, **properties), wire.exchange, wire.routing_key)
    return iter(Transport.take())


def once_each(entries: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without repeated declarations: kombu and the services declare an entity once per connection."""
    seen: list[tuple[Any, ...]] = []
    for entry in entries:
        if entry[0] == "publish" or entry not in seen:
            seen.append(entry)
    return seen


def readable(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    if entry[0] != "publish":
        return entry
    kind, exchange, routing_key, message = entry
    body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    body = re.sub(rb'"timestamp": [0-9.]+', b'"timestamp": 0', body)  # of a task-sent event
    # kombu before 5.5 took confirm_timeout for a property of the message, which py-amqp leaves out.
    known = {k: value for k, value in message.properties.items() if value is not None and k != "confirm_timeout"}
    return (kind, exchange, routing_key, body, known, message._serialize_properties())


def test_at_least_sixty_calls_are_compared_in_at_least_four_configurations(
    record_property: Callable[[str, object], None],
) -> None:
    register()
    counts = {name: len(calls(make_app(Celery, each))) for name, each in CONFIGURATIONS.items()}
    record_property("calls", sum(counts.values()))
    print(f"{sum(counts.values())} calls in {len(counts)} configurations: {counts}")
    assert len(counts) >= 4
    assert min(counts.values()) >= 60
