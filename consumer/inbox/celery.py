"""
OnceTask: a Celery task whose effects happen once, however often its message is delivered.

    @app.task(base=OnceTask, bind=True, acks_late=True, inbox_database=sessionmaker)
    def bill(self, order):
        self.inbox_handle.add(Invoice(order=order))

The body runs in one transaction with the mark of its task id: committed together, or undone together by whatever
exception leaves the body (an error, retry, replace, Ignore, Reject). So an attempt that failed can be tried again. A
delivery that comes after a committed one is skipped: it returns None (state SUCCESS; a backend that keeps the first
success, as Redis does, keeps its result) and calls no callback, no next step of a chain and no chord.

A worker that dies after the commit and before the acknowledgement leaves nothing for the redelivery to do, and so the
callbacks of Celery itself are not called either: what must follow is enqueued by the body, through the outbox.

A task that is called directly or eagerly was not delivered: it runs in a transaction, without a mark.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

from celery import Task

from outrider.consumer.inbox.once import Inbox
from outrider.consumer.inbox.transactions import open_transaction

EVENT_ID_HEADER = "event_id"

_handle: ContextVar[Any] = ContextVar("outbox_inbox_handle")


class OnceTask(Task):  # type: ignore[misc]  # celery is untyped
    """
    inbox_database  where the effects go: a Django alias, a SQLAlchemy sessionmaker, or anything else synchronous that
                    outrider.consumer.inbox.transactions accepts
    inbox_schema    the PostgreSQL schema of the outbox tables
    inbox_consumer  whose marks these are; the task's name by default. Tasks of one name share their marks

    The mark is for the task id, which is the outbox's event id where it is a UUID, and which retries keep; or for the
    header `event_id`, where whoever called the task gave it one: then any number of calls for an event count once.
    """

    abstract = True
    inbox_database: Any = None
    inbox_schema = "public"
    inbox_consumer: str | None = None
    run: Any

    def __init__(self) -> None:
        # Now, before Celery puts autoretry around it: so a commit that fails is retried too.
        self.run = _in_transaction(self, self.run)

    @property
    def inbox_handle(self) -> Any:
        """The session or connection of the running body's transaction; the alias, for Django."""
        try:
            return _handle.get()
        except LookupError:
            raise RuntimeError(f"{self.name} is not running: there is no transaction") from None

    def retry(self, args: Any = None, kwargs: Any = None, exc: Any = None, throw: bool = True, **options: Any) -> Any:
        if not throw:
            raise ValueError(f"{self.name}: retry(throw=False) would commit the attempt that is to be repeated")
        return super().retry(args, kwargs, exc, throw, **options)

    def _database(self) -> Any:
        # Not by way of the instance, where a function would turn into a method.
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
                with _bound(handle):
                    return body(*args, **kwargs)
        # No consequences: the delivery that was first had them.
        request.update(callbacks=None, chain=None, chord=None)
        return None

    return run


def _is_fresh(task: OnceTask, handle: Any) -> bool:
    event_id = (task.request.headers or {}).get(EVENT_ID_HEADER) or task.request.id
    # The transaction is this delivery's alone: an exception undoes all of it, and the block need not last.
    with _inbox(task.inbox_schema).once(handle, task.inbox_consumer or task.name, event_id, undo=False) as fresh:
        return fresh


@cache
def _inbox(schema: str) -> Inbox:
    return Inbox(schema=schema)


@contextmanager
def _bound(handle: Any) -> Iterator[None]:
    token = _handle.set(handle)
    try:
        yield
    finally:
        _handle.reset(token)
