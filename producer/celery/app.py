"""
OutboxCelery: a Celery application that writes task messages to the outbox instead of sending them.

Some messages go to the broker directly, whatever the settings:

- calls with a `producer` or `connection` of their own (beat does that);
- excluded tasks;
- outside a transaction: what a worker sends for Celery itself, such as the callbacks and errbacks of a finished task
  and the rest of its chain. These belong to the message that the worker holds, not to an application's transaction;
- `Task.retry` and `Task.replace` in a worker, also inside a transaction: the exception that they raise would roll the
  row back.

A call in the body of a task is captured like any other call, also in a task that runs eagerly (`task.apply()`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from threading import local
from typing import Any

from celery import Celery, signals
from celery.app.registry import TaskRegistry
from celery.utils import uuid

from outrider.producer.celery.capture import CapturingProducer
from outrider.producer.celery.dedup import DEDUP_KEY, DuplicateTask, check_options
from outrider.producer.celery.description import DescribingAMQP
from outrider.producer.celery.results import create_no_tables, defer_subscriptions
from outrider.producer.celery.task_outbox import TaskOutbox

_sends_direct: ContextVar[bool] = ContextVar("outbox_celery_sends_direct", default=False)
_in_task_body: ContextVar[bool] = ContextVar("outbox_celery_in_task_body", default=False)


@contextmanager
def _set(variable: ContextVar[bool]) -> Iterator[None]:
    token = variable.set(True)
    try:
        yield
    finally:
        variable.reset(token)


class DirectRetry:
    """Mixed into tasks: retry and replace go to the broker directly. An eager task runs the other one right there."""

    request: Any

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        with nullcontext() if self.request.is_eager else _set(_sends_direct):
            return super().retry(*args, **kwargs)  # type: ignore[misc]

    def on_replace(self, sig: Any) -> Any:
        with nullcontext() if self.request.is_eager else _set(_sends_direct):
            return super().on_replace(sig)  # type: ignore[misc]


class CapturingTaskRegistry(TaskRegistry):  # type: ignore[misc]  # celery is untyped
    """Prepares each task as it is registered, however that happens."""

    def __setitem__(self, name: str, task: Any) -> None:
        _prepare_task(task)
        super().__setitem__(name, task)


class Capturing:
    """Mixed into a Celery application's class: its tasks are captured."""

    amqp_cls = DescribingAMQP
    registry_cls = CapturingTaskRegistry
    outbox: TaskOutbox
    is_worker = False
    conf: Any
    current_worker_task: Any
    AsyncResult: Any
    _outbox_local: local

    def producer_or_acquire(self, producer: Any = None) -> Any:
        if producer is None and not _sends_direct.get():
            producer = self._capturing_producer()
            if producer is not None:
                return producer
        return super().producer_or_acquire(producer)  # type: ignore[misc]

    default_producer = producer_or_acquire  # Celery's alias

    def _capturing_producer(self) -> CapturingProducer | None:
        """None where the call goes to the broker directly."""
        return self.outbox.producer(self._sends_for_itself, lambda: str(self.conf.event_exchange))

    def _sends_for_itself(self) -> bool:
        """Whether this is a worker outside the body of a task, where only Celery's own code sends."""
        return not _in_task_body.get() and bool(self.is_worker or self.current_worker_task)

    def send_task(self, name: str, *args: Any, **options: Any) -> Any:
        send: Callable[..., Any] = super().send_task  # type: ignore[misc]
        # What a worker sends for Celery was checked by the call that enqueued it.
        if not self._sends_for_itself():
            check_options(options)
        if options.get(DEDUP_KEY) is not None:
            return self._send_once(send, name, *args, **options)
        if not self.outbox.excludes(name):
            return send(name, *args, **options)
        # A group hands its capturing producer to each of its tasks.
        if isinstance(options.get("producer"), CapturingProducer):
            options["producer"] = None
        with _set(_sends_direct):
            return send(name, *args, **options)

    def _send_once(self, send: Callable[..., Any], name: str, *args: Any, **options: Any) -> Any:
        """
        Enqueue a task that has a dedup_key; returns its AsyncResult, with `new` as in a Receipt.

        If a task with the key waits already, the result is that task's and `new` is False. Where the database role may
        not read the outbox, that result has the id of this call, which is not enqueued.
        """
        direct = self.outbox.excludes(name) or _sends_direct.get()
        direct = direct or any(options.get(given) is not None for given in ("producer", "publisher", "connection"))
        producer = None if direct else self._capturing_producer()
        if producer is None:
            raise ValueError(f"{name}: dedup_key needs the outbox, and this call goes to the broker directly")
        task_id = options.get("task_id") or uuid()
        try:
            result = send(name, *args, **options | {"task_id": task_id, "producer": producer})
        except DuplicateTask as duplicate:
            made_by = options.get("result_cls") or self.AsyncResult
            result = made_by(duplicate.waiting_task_id or task_id)
            result.new = False
        else:
            result.new = producer.new
        return result

    @property
    def backend(self) -> Any:
        # Backends that are not thread-safe are made once per thread.
        if self.is_worker or hasattr(self._outbox_local, "has_backend"):
            made = super().backend  # type: ignore[misc]
        else:
            with create_no_tables(self.conf):
                made = super().backend  # type: ignore[misc]
            self._outbox_local.has_backend = True
        return defer_subscriptions(made)


class OutboxCelery(Capturing, Celery):  # type: ignore[misc]  # celery is untyped
    """A drop-in for `celery.Celery`; `outbox` finds the current transaction."""

    def __init__(self, *args: Any, outbox: TaskOutbox, **kwargs: Any) -> None:
        self.outbox = outbox
        self._outbox_local = local()
        super().__init__(*args, **kwargs)
        _note_when_worker_starts(self)

    def __reduce_keys__(self) -> dict[str, Any]:
        return {**super().__reduce_keys__(), "outbox": self.outbox}


def capture_tasks(app: Any, outbox: TaskOutbox) -> None:
    """Make an existing Celery application capture its tasks: those it has, and those that are registered later."""
    if isinstance(app, Capturing):
        raise ValueError(f"{app!r} captures its tasks already")
    _mix_in(Capturing, app)
    app.outbox = outbox
    app._outbox_local = local()
    _note_when_worker_starts(app)
    if app.finalized:
        _prepare_registry(app)
    else:
        # Until then, tasks wait to be registered.
        app.on_after_finalize.connect(_prepare_registry, weak=False)


def _prepare_registry(sender: Any, **options: Any) -> None:  # noqa: ARG001
    registry = sender.tasks
    for task in registry.values():
        _prepare_task(task)
    _mix_in(CapturingTaskRegistry, registry)


def _prepare_task(task: Any) -> None:
    if isinstance(task, DirectRetry):
        return
    _mix_in(DirectRetry, task)
    # Tasks of Celery's own send on Celery's behalf: chord_unlock sends the body of a chord.
    if not task.name.startswith("celery."):
        task.run = _marked_as_body(task.run)


def _mix_in(mixin: type[Any], target: Any) -> None:
    kind = type(target)
    target.__class__ = type(kind.__name__, (mixin, kind), {"__module__": kind.__module__})


def _marked_as_body(run: Any) -> Any:
    @functools.wraps(run)
    def body(*args: Any, **kwargs: Any) -> Any:
        with _set(_in_task_body):
            return run(*args, **kwargs)

    return body


def _note_when_worker_starts(app: Any) -> None:
    def note(sender: Any, **options: Any) -> None:  # noqa: ARG001
        if sender.app is app:
            app.is_worker = True

    signals.worker_init.connect(note, weak=False)
