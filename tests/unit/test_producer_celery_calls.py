"""
A task call goes through all of Celery each time: signals, routers, settings and subclasses keep their effect.

Each test calls a task, changes something, and looks at the next message. The pytest plugin records the messages.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from celery import Celery, Task, signals
from kombu import Exchange, Queue
from kombu.common import Broadcast

from outrider import Context, tracking
from outrider.producer.celery import OutboxCelery, TaskOutbox, capture_tasks
from outrider.producer.celery.app import DirectRetry
from outrider.producer.pytest_plugin import OutboxRecorder, RecordedMessage


@pytest.fixture
def app() -> Any:
    return with_tasks(OutboxCelery("tests", broker="memory://", set_as_current=False, outbox=TaskOutbox()))


def with_tasks(app: Any) -> Any:
    app.task(name="tests.add", shared=False)(add)
    return app


def add(x: Any, y: Any = 0) -> Any:
    return x + y


def last(outbox: OutboxRecorder) -> RecordedMessage:
    return outbox.messages[-1]


def test_two_calls_differ_in_identity_and_arguments_only(app: Any, outbox: OutboxRecorder) -> None:
    task = app.tasks["tests.add"]
    first_result, second_result = task.delay(1, 2), task.apply_async(("a",), {"y": None}, task_id="mine")
    first, second = outbox.messages
    assert type(second_result) is type(first_result)
    assert (second_result.id, second_result.ignored) == ("mine", first_result.ignored)
    changed = {"id", "root_id", "argsrepr", "kwargsrepr"}
    assert {name for name, value in second.headers.items() if first.headers[name] != value} == changed
    assert (second.headers["argsrepr"], second.headers["kwargsrepr"]) == ("('a',)", "{'y': None}")
    assert second.row["properties"] == first.row["properties"].replace(first_result.id, "mine")
    assert (second.args, second.kwargs) == (["a"], {"y": None})


def test_nested_and_long_arguments_are_shortened_in_the_headers(app: Any, outbox: OutboxRecorder) -> None:
    task = app.tasks["tests.add"]
    task.delay({"deep": [1, {"deeper": [2]}]})
    task.delay("x" * 5000)
    assert outbox.messages[0].headers["argsrepr"] == "({'deep': [1, {...}]},)"
    assert outbox.messages[1].headers["argsrepr"].endswith("...',)")
    with pytest.raises(TypeError, match="list or tuple"):
        task.apply_async("ab", typing=False)


@pytest.mark.parametrize("signal", [signals.before_task_publish, signals.after_task_publish], ids=["before", "after"])
def test_receivers_of_publish_signals_are_called(signal: Any, app: Any, outbox: OutboxRecorder) -> None:
    task = app.tasks["tests.add"]
    task.delay(1, 2)
    seen: list[str] = []

    def receiver(headers: dict[str, Any], **_: Any) -> None:
        headers["added"] = "by a receiver"
        seen.append(headers["id"])

    signal.connect(receiver)
    try:
        result = task.delay(1, 2)
    finally:
        signal.disconnect(receiver)
    assert seen == [result.id]
    assert ("added" in last(outbox).headers) == (signal is signals.before_task_publish)


def test_settings_that_change_between_calls_take_effect(app: Any, outbox: OutboxRecorder) -> None:
    task = app.tasks["tests.add"]
    task.delay(1, 2)
    app.amqp.queues.add(Queue("celery", routing_key="celery", queue_arguments={"x-max-length": 5}))
    task.delay(1, 2)
    assert "x-max-length" in last(outbox).row["declarations"]
    app.conf.task_default_queue = "another"
    task.delay(1, 2)
    assert last(outbox).routing_key == "another"
    app.conf.task_send_sent_event = True
    task.delay(1, 2)
    assert {each.event_type for each in outbox.messages[-2:]} == {"tests.add", "task-sent"}
    app.conf.task_always_eager = True
    assert task.delay(1, 2).get() == 3


def test_a_router_function_is_called_each_time(app: Any, outbox: OutboxRecorder) -> None:
    def by_argument(name: str, args: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return {"queue": f"shard-{args[0]}"}

    app.conf.task_routes = (by_argument,)
    for shard in (1, 2, 3):
        app.tasks["tests.add"].delay(shard)
    assert [each.routing_key for each in outbox.messages] == ["shard-1", "shard-2", "shard-3"]


def test_a_subclass_of_celery_can_override_send_task(outbox: OutboxRecorder) -> None:
    class Tenanted(Celery):  # type: ignore[misc]
        def send_task(self, *args: Any, **options: Any) -> Any:
            return super().send_task(*args, **options | {"headers": {"tenant": "t-1"}})

    app = with_tasks(Tenanted("tests", broker="memory://", set_as_current=False))
    capture_tasks(app, TaskOutbox())
    for _ in range(2):
        app.tasks["tests.add"].delay(1, 2)
    assert [each.headers["tenant"] for each in outbox.messages] == ["t-1", "t-1"]


@pytest.mark.parametrize("finalized", [False, True])
def test_tasks_are_prepared_whenever_the_application_is_finalized(finalized: bool) -> None:
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.task(name="tests.before", shared=False)(add)
    if finalized:
        app.finalize()
    capture_tasks(app, TaskOutbox())
    app.task(name="tests.after", shared=False)(add)
    app.register_task(type("Registered", (Task,), {"name": "tests.registered", "run": add}))
    app.finalize()
    app.task(name="tests.late", shared=False)(add)
    names = ("tests.before", "tests.after", "tests.registered", "tests.late")
    assert all(isinstance(app.tasks[name], DirectRetry) for name in names)


def test_instrumentation_of_celery_sees_every_call(
    app: Any, outbox: OutboxRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = app.tasks["tests.add"]
    task.delay(1, 2)
    seen: list[str] = []
    send_task = Celery.send_task

    def instrumented(self: Any, name: str, *args: Any, **options: Any) -> Any:
        seen.append(name)
        return send_task(self, name, *args, **options)

    monkeypatch.setattr(Celery, "send_task", instrumented)
    task.delay(1, 2)
    assert seen == ["tests.add"]
    assert len(outbox.messages) == 2


def test_a_child_task_carries_the_ids_of_its_parent(app: Any, outbox: OutboxRecorder) -> None:
    from celery._state import _task_stack

    task: Task = app.tasks["tests.add"]
    _task_stack.push(task)
    task.push_request(id="parent", root_id="root", called_directly=False, children=[])
    try:
        child = task.delay(1, 2)
    finally:
        task.pop_request()
        _task_stack.pop()
    assert (last(outbox).headers["parent_id"], last(outbox).headers["root_id"]) == ("parent", "root")
    assert child.id == last(outbox).headers["id"]


def test_each_message_carries_the_context_of_its_own_call(outbox: OutboxRecorder) -> None:
    app = OutboxCelery("tests", broker="memory://", set_as_current=False, outbox=TaskOutbox(context=Context()))
    task = with_tasks(app).tasks["tests.add"]
    for request in ("one", "two"):
        with tracking(request):
            task.delay(1, 2)
    assert [each.headers["tracking_ids"][0] for each in outbox.messages] == ["one", "two"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"headers": {"x": [{"a\0b": 1}]}}, "a header must not contain a NUL"),
        ({"headers": {"x": {"y": "\ud800"}}}, "a header holds a lone surrogate"),
        ({"headers": {"x": [math.inf]}}, "Out of range float"),
        ({"correlation_id": "a\0b"}, "a property must not contain a NUL"),
        ({"app_id": "\ud800"}, "a property holds a lone surrogate"),
        ({"expiration": math.nan}, "Out of range float"),
        ({"queue": Queue("q", queue_arguments={"x-max-length": math.inf})}, "Out of range float"),
        ({"queue": Queue("q", queue_arguments={"x": ["a\0b"]})}, "a declaration must not contain a NUL"),
        ({"queue": Queue("q", queue_arguments={"\ud800": 1})}, "a declaration holds a lone surrogate"),
    ],
)
def test_what_neither_postgresql_nor_amqp_can_carry_is_refused_by_the_call(
    app: Any, outbox: OutboxRecorder, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        app.tasks["tests.add"].apply_async((1, 2), **options)
    assert outbox.messages == []
    app.tasks["tests.add"].apply_async((1, 2))
    assert len(outbox.messages) == 1


@pytest.mark.parametrize("argument", ["a\0b", "\\u0000", "\U0001f600"])
def test_arguments_may_hold_what_celery_can_send(app: Any, outbox: OutboxRecorder, argument: str) -> None:
    app.tasks["tests.add"].delay(argument, y=argument)
    assert (last(outbox).args, last(outbox).kwargs) == ([argument], {"y": argument})


def test_the_pytest_plugin_records_one_task_of_a_dedup_key(app: Any, outbox: OutboxRecorder) -> None:
    first, again = (app.tasks["tests.add"].apply_async((1, 2), dedup_key="k", task_id=name) for name in ("a", "b"))
    assert (first.id, first.new, again.id, again.new) == ("a", True, "a", False)
    assert [each.dedup_key for each in outbox.messages] == ["k"]


def test_events_of_celery_and_messages_to_fanout_exchanges_may_vanish(app: Any, outbox: OutboxRecorder) -> None:
    app.conf.task_send_sent_event = True
    app.conf.task_queues = [Queue("celery"), Broadcast("everyone")]
    task = app.tasks["tests.add"]
    may_vanish = {}
    for name, options in {
        "a direct exchange": {},
        "a broadcast queue": {"queue": "everyone"},
        "a broadcast queue as an object": {"queue": Broadcast("others")},
        "a fanout exchange by name": {"exchange": "everyone", "routing_key": ""},
        "a fanout exchange as an object": {"exchange": Exchange("x", type="fanout"), "routing_key": ""},
        "a topic exchange": {"exchange": Exchange("x", type="topic"), "routing_key": "a.b"},
        "as the call says": {"mandatory": False},
    }.items():
        task.apply_async((1, 2), **options)
        message, event = outbox.messages[-2:]
        assert (message.event_type, event.event_type) == ("tests.add", "task-sent")
        assert json.loads(event.row["properties"])["mandatory"] is False
        may_vanish[name] = json.loads(message.row["properties"]).get("mandatory") is False
    assert [name for name, vanishes in may_vanish.items() if not vanishes] == ["a direct exchange", "a topic exchange"]
