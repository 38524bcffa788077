"""
OutboxCelery: a Celery application whose producers capture.

Three things go direct, whatever the settings: a call that brings its own `producer` or `connection` (beat does), the
tasks that are excluded, and what a worker sends on behalf of Celery itself (retry, replace, the callbacks and errbacks
of a finished task, the rest of a chain): these belong to the message that the worker holds, not to a transaction of the
application. What the body of a task calls is captured as anywhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from celery import Celery, signals

from outrider.producer.celery.capture import CapturingProducer
from outrider.producer.celery.description import describe_quickly
from outrider.producer.celery.mould import Moulds, ObservedProducer, is_genuine
from outrider.producer.celery.results import defer_subscriptions, no_tables_at_setup
from outrider.producer.celery.task_outbox import TaskOutbox

_direct: ContextVar[bool] = ContextVar("outbox_celery_direct", default=False)
_in_body: ContextVar[bool] = ContextVar("outbox_celery_in_body", default=False)


@contextmanager
def _set(variable: ContextVar[bool]) -> Iterator[None]:
    token = variable.set(True)
    try:
        yield
    finally:
        variable.reset(token)


def sending_direct() -> Any:
    """Inside the block, tasks go to the broker as with plain Celery."""
    return _set(_direct)


class DirectRetry:
    """What a task does to its own message, it does past the outbox: its own exception would roll the row back."""

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        with sending_direct():
            return super().retry(*args, **kwargs)  # type: ignore[misc]

    def on_replace(self, sig: Any) -> Any:
        with sending_direct():
            return super().on_replace(sig)  # type: ignore[misc]


class Capturing:
    """What makes a Celery application capture; mixed into its class."""

    outbox: TaskOutbox
    _is_worker = False
    conf: Any
    current_worker_task: Any

    def producer_or_acquire(self, producer: Any = None) -> Any:
        if producer is None and not _direct.get():
            producer = self.outbox.producer(self._sends_by_itself)
            if producer is not None:
                return producer
        return super().producer_or_acquire(producer)  # type: ignore[misc]

    def _sends_by_itself(self) -> bool:
        """Whether this is a worker, and not in the body of a task: nobody's code but Celery's sends here."""
        return not _in_body.get() and bool(self._is_worker or self.current_worker_task)

    default_producer = producer_or_acquire  # Celery's alias

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        send: Callable[..., Any] = super().send_task  # type: ignore[misc]
        if self.outbox.excludes(name):
            # A group hands its capturing producer to each of its tasks.
            if isinstance(options.get("producer"), CapturingProducer):
                options["producer"] = None
            with sending_direct():
                return send(name, args, kwargs, *rest, **options)
        if not rest and not _direct.get() and is_genuine(send):
            key = self._moulds.key(name, options)
            if key is not None:
                return self._send_plain(send, key, name, args, kwargs, options)
        return send(name, args, kwargs, *rest, **options)

    def _send_plain(self, send: Any, key: Any, name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """A call like the last one but for its arguments."""
        result = None
        if self._moulds.knows(key):
            write = self.outbox.writer(self._sends_by_itself)
            if write is not None:
                result = self._moulds.cast(key, args, kwargs, options, write)
            return send(name, args, kwargs, **options) if result is None else result
        observed = self.outbox.producer(self._sends_by_itself, ObservedProducer)
        if observed is None:
            return send(name, args, kwargs, **options)
        result = send(name, args, kwargs, **(options | {"producer": observed}))
        self._moulds.learn(key, observed)
        return result

    @cached_property
    def _moulds(self) -> Moulds:
        return Moulds(self)

    def register_task(self, task: Any, **options: Any) -> Any:
        return _arm_task(super().register_task(task, **options))  # type: ignore[misc]

    def _task_from_fun(self, *args: Any, **options: Any) -> Any:
        return _arm_task(super()._task_from_fun(*args, **options))  # type: ignore[misc]

    @cached_property
    def amqp(self) -> Any:
        return describe_quickly(super().amqp)  # type: ignore[misc]

    def _get_backend(self) -> Any:
        with nullcontext() if self._is_worker else no_tables_at_setup(self.conf):
            backend = super()._get_backend()  # type: ignore[misc]
        return defer_subscriptions(backend)


class OutboxCelery(Capturing, Celery):  # type: ignore[misc]  # celery is untyped
    """A drop-in for `celery.Celery`; `outbox` says where transactions are found."""

    def __init__(self, *args: Any, outbox: TaskOutbox, **kwargs: Any) -> None:
        self.outbox = outbox
        super().__init__(*args, **kwargs)
        _notice_worker(self)

    def __reduce_keys__(self) -> dict[str, Any]:
        return {**super().__reduce_keys__(), "outbox": self.outbox}


def arm(app: Any, outbox: TaskOutbox) -> None:
    """Make an existing application capture, with the tasks it has and those to come."""
    if isinstance(app, Capturing):
        raise ValueError(f"{app!r} captures already")
    kind = type(app)
    app.__class__ = type(kind.__name__, (Capturing, kind), {"__module__": kind.__module__})
    app.outbox = outbox
    _notice_worker(app)
    for task in app._tasks.values():
        _arm_task(task)
    if "amqp" in vars(app):
        describe_quickly(app.amqp)
    if app._backend is not None:
        defer_subscriptions(app._backend)


def _arm_task(task: Any) -> Any:
    if not isinstance(task, DirectRetry):
        kind = type(task)
        task.__class__ = type(kind.__name__, (DirectRetry, kind), {"__module__": kind.__module__})
        # Celery has tasks of its own, which send for it: chord_unlock the body of a chord.
        if not task.name.startswith("celery."):
            task.run = _marked(task.run)
    return task


def _marked(run: Any) -> Any:
    @functools.wraps(run)
    def body(*args: Any, **kwargs: Any) -> Any:
        with _set(_in_body):
            return run(*args, **kwargs)

    return body


def _notice_worker(app: Any) -> None:
    def started(sender: Any, **options: Any) -> None:  # noqa: ARG001
        worker_app: Any = getattr(sender, "app", None)
        if worker_app is app:
            worker_app._is_worker = True

    signals.worker_init.connect(started, weak=False)
