"""
A plain call after the first is cast from the message of the first, and whatever could make it differ is noticed.

Each test calls a task often enough to have a mould, changes something, and looks at the next message. The pytest plugin
records: no server is needed.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task, signals
from kombu import Queue

from outrider.producer import Context, tracking
from outrider.producer.celery import OutboxCelery, TaskOutbox, arm
from outrider.producer.celery.mould import MAX_MOULDS, Moulds
from outrider.producer.pytest_plugin import Captured, RecordedOutbox


@pytest.fixture
def casts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The results of calls that did not go the long way."""
    found: list[Any] = []
    cast = Moulds.cast

    def counted(self: Moulds, *args: Any) -> Any:
        result = cast(self, *args)
        if result is not None:
            found.append(result)
        return result

    monkeypatch.setattr(Moulds, "cast", counted)
    return found


@pytest.fixture
def app() -> Any:
    return fill(OutboxCelery("tests", broker="memory://", set_as_current=False, outbox=TaskOutbox()))


def fill(app: Any) -> Any:
    app.task(name="tests.add", shared=False)(add)
    app.task(name="tests.report", shared=False, ignore_result=True, compression="zlib", time_limit=9)(add)
    return app


def add(x: Any, y: Any = 0) -> Any:
    return x + y


def call_twice(task: Any) -> None:
    task.delay(1, 2)
    task.delay(1, 2)


def last(outbox: RecordedOutbox) -> Captured:
    return outbox.messages[-1]


def test_the_second_plain_call_is_cast_and_differs_in_identity_and_arguments_only(
    app: Any, outbox: RecordedOutbox, casts: list[Any]
) -> None:
    for task in (app.tasks["tests.add"], app.tasks["tests.report"]):
        first_result, second_result = task.delay(1, 2), task.apply_async(("a",), {"y": None}, task_id="mine")
        first, second = outbox.messages[-2:]
        assert casts.pop() is second_result
        assert type(second_result) is type(first_result)
        assert (second_result.id, second_result.ignored) == ("mine", first_result.ignored)
        changed = {"id", "root_id", "argsrepr", "kwargsrepr"}
        assert {name for name, value in second.headers.items() if first.headers[name] != value} == changed
        assert (second.headers["argsrepr"], second.headers["kwargsrepr"]) == ("('a',)", "{'y': None}")
        assert list(second.headers) == list(first.headers)
        assert second.row["properties"] == first.row["properties"].replace(first_result.id, "mine")
        assert (second.args, second.kwargs) == (["a"], {"y": None})
        same = {"exchange", "routing_key", "declarations", "content_type", "content_encoding", "event_type"}
        assert {name: second.row[name] for name in same} == {name: first.row[name] for name in same}


def test_calls_with_options_of_their_own_do_not_share_a_mould(
    app: Any, outbox: RecordedOutbox, casts: list[Any]
) -> None:
    task = app.tasks["tests.add"]
    for _ in range(2):
        task.apply_async((1, 2), priority=1)
        task.apply_async((1, 2), priority=True)
        task.apply_async((1, 2), queue="other")
    assert len(casts) == 3
    assert [each.row["properties"].rpartition('"priority":')[2] for each in outbox.messages[3:5]] == ["1}", "true}"]
    assert last(outbox).routing_key == "other"


@pytest.mark.parametrize(
    "options",
    [{"countdown": 5}, {"expires": 60}, {"headers": {"a": 1}}, {"link": ["a signature"]}, {"add_to_parent": False}],
    ids=str,
)
def test_a_call_that_is_not_plain_goes_the_long_way(
    options: dict[str, Any], app: Any, outbox: RecordedOutbox, casts: list[Any]
) -> None:
    task = app.tasks["tests.add"]
    if "link" in options:
        options = {"link": task.s(3)}
    for _ in range(2):
        task.apply_async((1, 2), **options)
    assert casts == []
    assert len(outbox.messages) == 2


def test_arguments_that_need_a_closer_look_go_the_long_way(app: Any, outbox: RecordedOutbox, casts: list[Any]) -> None:
    task = app.tasks["tests.add"]
    call_twice(task)
    casts.clear()
    task.delay({"deep": [1, {"deeper": [2]}]})
    task.delay("x" * 5000)
    assert casts == []
    assert outbox.messages[-2].headers["argsrepr"] == "({'deep': [1, {...}]},)"
    assert last(outbox).headers["argsrepr"].endswith("...',)")
    with pytest.raises(TypeError, match="list or tuple"):
        task.apply_async("ab", typing=False)


@pytest.mark.parametrize("signal", [signals.before_task_publish, signals.after_task_publish], ids=["before", "after"])
def test_receivers_of_publish_signals_are_asked(signal: Any, app: Any, outbox: RecordedOutbox) -> None:
    task = app.tasks["tests.add"]
    call_twice(task)
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


def test_settings_that_change_are_heeded_and_lead_to_a_new_mould(
    app: Any, outbox: RecordedOutbox, casts: list[Any]
) -> None:
    task = app.tasks["tests.add"]
    call_twice(task)
    app.amqp.queues.add(Queue("celery", routing_key="celery", queue_arguments={"x-max-length": 5}))
    for _ in range(3):
        task.delay(1, 2)
        assert "x-max-length" in last(outbox).row["declarations"]
    app.conf.task_default_queue = "another"
    for _ in range(3):
        task.delay(1, 2)
        assert last(outbox).routing_key == "another"
    assert len(casts) == 3
    app.conf.task_send_sent_event = True
    task.delay(1, 2)
    assert {each.event_type for each in outbox.messages[-2:]} == {"tests.add", "task-sent"}
    app.conf.task_always_eager = True
    assert task.delay(1, 2).get() == 3


def test_a_router_that_is_a_function_is_asked_each_time(app: Any, outbox: RecordedOutbox, casts: list[Any]) -> None:
    def by_argument(name: str, args: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return {"queue": f"shard-{args[0]}"}

    app.conf.task_routes = (by_argument,)
    for shard in (1, 2, 3):
        app.tasks["tests.add"].delay(shard)
    assert [each.routing_key for each in outbox.messages] == ["shard-1", "shard-2", "shard-3"]
    assert casts == []


def test_a_subclass_of_celery_that_sends_in_its_own_way_is_not_passed_by(outbox: RecordedOutbox) -> None:
    class Tenanted(Celery):  # type: ignore[misc]
        def send_task(self, *args: Any, **options: Any) -> Any:
            return super().send_task(*args, **options | {"headers": {"tenant": "t-1"}})

    app = fill(Tenanted("tests", broker="memory://", set_as_current=False))
    arm(app, TaskOutbox())
    call_twice(app.tasks["tests.add"])
    assert [each.headers["tenant"] for each in outbox.messages] == ["t-1", "t-1"]


def test_instrumentation_of_celery_is_not_passed_by(
    app: Any, outbox: RecordedOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = app.tasks["tests.add"]
    call_twice(task)
    seen: list[str] = []
    send_task = Celery.send_task

    def instrumented(self: Any, name: str, *args: Any, **options: Any) -> Any:
        seen.append(name)
        return send_task(self, name, *args, **options)

    monkeypatch.setattr(Celery, "send_task", instrumented)
    task.delay(1, 2)
    assert seen == ["tests.add"]
    assert len(outbox.messages) == 3


def test_a_child_knows_its_parent(app: Any, outbox: RecordedOutbox) -> None:
    task: Task = app.tasks["tests.add"]
    call_twice(task)
    from celery._state import _task_stack

    _task_stack.push(task)
    task.push_request(id="parent", root_id="root", called_directly=False, children=[])
    try:
        child = task.delay(1, 2)
    finally:
        task.pop_request()
        _task_stack.pop()
    assert (last(outbox).headers["parent_id"], last(outbox).headers["root_id"]) == ("parent", "root")
    assert child.id == last(outbox).headers["id"]


def test_a_cast_message_carries_the_context_of_its_own_moment(outbox: RecordedOutbox) -> None:
    task = fill(
        OutboxCelery("tests", broker="memory://", set_as_current=False, outbox=TaskOutbox(context=Context()))
    ).tasks["tests.add"]
    for request in ("one", "two"):
        with tracking(request):
            task.delay(1, 2)
    assert [each.headers["tracking_ids"][0] for each in outbox.messages] == ["one", "two"]


def test_moulds_do_not_pile_up(app: Any) -> None:
    moulds = Moulds(app)
    moulds._moulds = dict.fromkeys(range(MAX_MOULDS))
    producer: Any = type("Nothing", (), {"published": [], "rows": [], "declared_ahead": False})()
    moulds.learn("one more", producer)
    assert moulds._moulds == {"one more": None}
