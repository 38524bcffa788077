"""
TaskOutbox: how the current transaction is found, and what happens to a task call outside of one.

    Django         TaskOutbox(django="default"): the atomic block of this alias
    anything else  `with outbox.session(handle):` binds a SQLAlchemy Session, a psycopg connection or any other
                   synchronous handle to the running thread or asyncio task; `outbox.bind(sessionmaker)` does so for
                   every session of a SQLAlchemy sessionmaker, from the begin of its transaction to its end

Code that uses an AsyncSession calls its tasks inside `await session.run_sync(...)`: a task call is synchronous.

Outside a transaction, `outside_transaction` decides: 'capture' writes the row at once, in a transaction of its own,
with a warning (without Django this needs `connect`); 'direct' sends to the broker as plain Celery does; 'raise'
raises OutsideTransactionError.

A task call waits for the answer to its INSERT. An error of the INSERT is raised by the call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, get_args

from outrider.producer.celery.capture import CapturingProducer
from outrider.producer.celery.declarations import Declarations
from outrider.producer.context import Context
from outrider.producer.handles import adapter_for
from outrider.producer.handles.django import connection_of
from outrider.producer.outbox import Outbox, OutsideTransactionError, OutsideTransactionWarning, application_stack_level
from outrider.producer.row import Row

OutsideTransaction = Literal["capture", "direct", "raise"]


class TaskOutbox:
    """
    django               the Django alias whose transactions count; None where handles are bound
    connect              for bound handles: returns a context manager of an autocommit handle, which captures outside a
                         transaction, e.g. `lambda: psycopg.connect(dsn, autocommit=True)`
    schema               the PostgreSQL schema of the outbox tables
    outside_transaction  'capture' (with a warning), 'direct' or 'raise'
    exclude_tasks        names or globs ('reports.*') of tasks that always go to the broker directly
    hold_eta             tasks with an eta wait in PostgreSQL and are published when due, instead of waiting in a worker
    context              headers and log context that tasks carry (see outrider.producer.context); None for none
    """

    def __init__(
        self,
        *,
        django: str | None = None,
        connect: Callable[[], AbstractContextManager[Any]] | None = None,
        schema: str = "public",
        outside_transaction: OutsideTransaction = "capture",
        exclude_tasks: Collection[str] = (),
        hold_eta: bool = False,
        context: Context | None = None,
    ) -> None:
        if outside_transaction not in get_args(OutsideTransaction):
            raise ValueError(f"outside_transaction is one of {', '.join(get_args(OutsideTransaction))}")
        if isinstance(exclude_tasks, str):
            raise TypeError("exclude_tasks is a collection of names or globs, not a str")
        self.django = django
        self.connect = connect
        self.schema = schema
        self.outside_transaction = outside_transaction
        self.exclude_tasks = tuple(exclude_tasks)
        self.hold_eta = hold_eta
        self.context = context
        self._declarations = Declarations()
        self._outbox = Outbox(schema=schema, context=None, outside_transaction="allow")
        self._bound: ContextVar[tuple[Any, ...]] = ContextVar("outbox_bound", default=())

    def __reduce__(self) -> Any:
        """Worker pools that spawn processes pickle the application. Bound handles are not pickled."""
        return _make, ({name: getattr(self, name) for name in _SETTINGS},)

    @contextmanager
    def session(self, handle: Any) -> Iterator[None]:
        """Inside the block, tasks are captured in the transaction of this handle."""
        if adapter_for(handle).is_async:
            raise TypeError("a task call is synchronous: bind a synchronous handle (see AsyncSession.run_sync)")
        token = self._bound.set((*self._bound.get(), handle))
        try:
            yield
        finally:
            self._bound.reset(token)

    def bind(self, sessionmaker: Any) -> None:
        """Capture tasks in every transaction of the sessions of this sessionmaker or Session class."""
        from sqlalchemy import event

        event.listen(sessionmaker, "after_transaction_create", self._on_transaction_begin)
        event.listen(sessionmaker, "after_transaction_end", self._on_transaction_end)

    def excludes(self, task_name: str) -> bool:
        return any(fnmatchcase(task_name, pattern) for pattern in self.exclude_tasks)

    def producer(self, sends_for_itself: Callable[[], bool]) -> CapturingProducer | None:
        """
        A producer that captures; None where the call goes to the broker directly.

        sends_for_itself  whether Celery itself sends, not the application: outside a transaction that goes direct
        """
        handle = self._handle_in_transaction()
        if handle is None and (self.outside_transaction == "direct" or sends_for_itself()):
            return None
        return CapturingProducer(
            partial(self._write, handle),
            self._declarations,
            hold_eta=self.hold_eta,
            add_context=None if self.context is None else self._add_context,
        )

    def _handle_in_transaction(self) -> Any:
        # The alias is resolved once per call, here.
        handle = next(reversed(self._bound.get()), None) if self.django is None else connection_of(self.django)
        return handle if handle is not None and adapter_for(handle).in_transaction(handle) else None

    def _write(self, handle: Any, rows: list[Row]) -> None:
        if handle is not None:
            self._enqueue(handle, rows)
            return
        name = rows[0]["event_type"]
        text = f"{name} is called outside a transaction: it is sent even if the work around it fails"
        if self.outside_transaction == "raise":
            raise OutsideTransactionError(text)
        if self.django is None and self.connect is None:
            raise OutsideTransactionError(f"{text}; to capture it, TaskOutbox needs `connect`")
        warnings.warn(text, OutsideTransactionWarning, stacklevel=application_stack_level("celery", "kombu"))
        if self.connect is None:
            self._enqueue(self.django, rows)
        else:
            with self.connect() as autocommit:
                self._enqueue(autocommit, rows)

    def _enqueue(self, handle: Any, rows: list[Row]) -> None:
        if len(rows) == 1:
            self._outbox.write_row(handle, rows[0])
        else:
            self._outbox.write_rows(handle, rows)

    def _add_context(self, row: Row, headers: dict[str, Any]) -> None:
        assert self.context is not None
        context = self.context.now()
        for name, value in context.headers(row["event_id"]).items():
            headers.setdefault(name, value)
        row["context"] = context.log

    def _on_transaction_begin(self, session: Any, transaction: Any) -> None:
        if transaction.parent is None:
            self._bound.set((*self._bound.get(), session))

    def _on_transaction_end(self, session: Any, transaction: Any) -> None:
        if transaction.parent is None:
            self._bound.set(tuple(bound for bound in self._bound.get() if bound is not session))


_SETTINGS = (*("django", "connect", "schema", "outside_transaction", "exclude_tasks", "hold_eta", "context"),)


def _make(settings: dict[str, Any]) -> TaskOutbox:
    return TaskOutbox(**settings)
