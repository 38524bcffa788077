"""
OnceTask: a Celery task that applies its effects once, even if its message is delivered several times.

    @app.task(base=OnceTask, bind=True, acks_late=True, inbox_database=sessionmaker)
    def bill(self, order):
        self.inbox_handle.add(Invoice(order=order))

The body runs in one transaction, which also marks the task id as processed. Any exception that leaves the body (an
error, retry, replace, Ignore, Reject) rolls both back, so a failed attempt can be retried. A delivery after a committed
one is skipped: it returns None (state SUCCESS; a backend that keeps the first success, as Redis does, keeps its result)
and runs no callback, no next step of a chain and no chord.

If a worker dies after the commit and before the acknowledgement, the redelivery is skipped, and Celery's callbacks of
the first delivery are lost with the worker. Enqueue follow-up work in the body, through the outbox.

A task that is called directly or eagerly has no delivery: it runs in a transaction, without a mark.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

from celery import Task

from outrider.consumer.inbox.once import Inbox
from outrider.consumer.inbox.transactions import open_transaction

EVENT_ID_HEADER = "event_id"
REPLAY_ID_HEADER = "replay_id"

_handle: ContextVar[Any] = ContextVar("outbox_inbox_handle")


class OnceTask(Task):  # type: ignore[misc]  # celery is untyped
    """
    inbox_database  the database of the effects: a Django alias, a SQLAlchemy sessionmaker, or any other
                    synchronous database that outrider.consumer.inbox.transactions accepts
    inbox_schema    the PostgreSQL schema of the outbox tables
    inbox_consumer  the consumer name of the marks; the task's name by default. Tasks with the same name share marks

    The mark holds the task id, which is the outbox's event id if it is a UUID, and which retries keep. If the caller
    set the header `event_id`, the mark holds that instead: all calls with the same event_id apply their effects once.
    """

    abstract = True
    inbox_database: Any = None
    inbox_schema = "public"
    inbox_consumer: str | None = None
    run: Any

    def __init__(self) -> None:
        # Before Celery wraps it for autoretry, so that a failed commit is retried too.
        self.run = _in_transaction(self, self.run)

    @property
    def inbox_handle(self) -> Any:
        """The session or connection of the running task's transaction; for Django the alias."""
        try:
            return _handle.get()
        except LookupError:
            raise RuntimeError(f"{self.name} is not running: there is no transaction") from None

    def retry(self, args: Any = None, kwargs: Any = None, exc: Any = None, throw: bool = True, **options: Any) -> Any:
        if not throw:
            raise ValueError(f"{self.name}: retry(throw=False) would commit the failed attempt")
        return super().retry(args, kwargs, exc, throw, **options)

    def _database(self) -> Any:
        # Not from the instance: a function would be bound as a method.
        database = inspect.getattr_static(type(self), "inbox_database")
        if database is None:
            raise ValueError(f"{self.name} needs inbox_database: a Django alias or a SQLAlchemy sessionmaker")
        return database.__func__ if isinstance(database, staticmethod) else database


def _in_transaction(task: OnceTask, body: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        with open_transaction(task._database()) as handle:
            if request.called_directly or request.is_eager or _is_fresh(task, handle):
                token = _handle.set(handle)
                try:
                    return body(*args, **kwargs)
                finally:
                    _handle.reset(token)
        # Skipped: the first delivery ran the callbacks.
        request.update(callbacks=None, chain=None, chord=None)
        return None

    return run


def _is_fresh(task: OnceTask, handle: Any) -> bool:
    headers = task.request.headers or {}
    event_id = headers.get(EVENT_ID_HEADER) or task.request.id
    replay_id = headers.get(REPLAY_ID_HEADER)
    # The transaction belongs to this delivery alone: an exception rolls back all of it, without a savepoint.
    consumer = task.inbox_consumer or task.name
    with _inbox(task.inbox_schema).once(handle, consumer, event_id, undo=False, replay_id=replay_id) as fresh:
        return fresh


@cache
def _inbox(schema: str) -> Inbox:
    return Inbox(schema=schema)
