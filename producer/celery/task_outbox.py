"""
TaskOutbox: how the current transaction is found, and what happens to a task call outside of one.

    Django         TaskOutbox(django=True): the atomic block of OUTRIDER["DATABASE"]; or of the alias that is given
    anything else  `with outbox.session(handle):` binds a SQLAlchemy Session, a psycopg connection or any other
                   synchronous handle to the running thread or asyncio task; `outbox.bind(sessionmaker)` does so for
                   every session of a SQLAlchemy sessionmaker, from the begin of its transaction to its end

Code that uses an AsyncSession calls its tasks inside `await session.run_sync(...)`: a task call is synchronous.

Outside a transaction, `outside_transaction` decides: 'capture' writes the row at once, in a transaction of its own,
with a warning, also in the log (without Django this needs `connect`); 'direct' sends to the broker as plain Celery
does; 'raise' raises OutsideTransactionError.

A task call waits for the answer to its INSERT. An error of the INSERT is raised by the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Any, Literal, get_args

from outrider.producer.celery.capture import CapturingProducer
from outrider.producer.celery.declarations import Declarations
from outrider.producer.celery.dedup import DuplicateTask
from outrider.producer.celery.outside import OutsideCalls
from outrider.producer.context import Context
from outrider.producer.handles import adapter_for, no_guard
from outrider.producer.handles.django import connection_of
from outrider.producer.outbox import Outbox, OutsideTransactionError
from outrider.producer.row import Row
from outrider.producer.statement import Statement
from outrider.storage.sql_files import queries_of
from outrider.storage.task_id import task_id_of

OutsideTransaction = Literal["capture", "direct", "raise"]

WRITE_ONCE_ATTEMPTS = 5
"""A waiting task can be delivered between the INSERT that met it and the SELECT of its id: then another INSERT."""


class TaskOutbox:
    """
    django               True: the database and schema that Django's setting OUTRIDER names, and its CONTEXT; or the
                         alias whose transactions count. None where handles are bound
    connect              for bound handles: returns a context manager of an autocommit handle, which captures outside a
                         transaction, e.g. `lambda: psycopg.connect(dsn, autocommit=True)`
    schema               the PostgreSQL schema of the outbox tables; by default OUTRIDER["SCHEMA"], or 'public' where
                         handles are bound
    outside_transaction  'capture' (with a warning), 'direct' or 'raise'
    exclude_tasks        names or globs ('reports.*') of tasks that always go to the broker directly
    hold_eta             tasks with an eta wait in PostgreSQL and are published when due, instead of waiting in a worker
    context              headers and log context that tasks carry (see outrider.producer.context); None for none
    """

    def __init__(
        self,
        *,
        django: str | Literal[True] | None = None,
        connect: Callable[[], AbstractContextManager[Any]] | None = None,
        schema: str | None = None,
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
        self.outside_transaction = outside_transaction
        self.exclude_tasks = tuple(exclude_tasks)
        self.hold_eta = hold_eta
        self._given: dict[str, Any] = {"schema": schema, "context": context}
        self._declarations = Declarations()
        self._outside_calls = OutsideCalls()
        self._bound: ContextVar[tuple[Any, ...]] = ContextVar("outbox_bound", default=())

    def __reduce__(self) -> Any:
        """Worker pools that spawn processes pickle the application. Bound handles are not pickled."""
        return _make, ({name: getattr(self, name) for name in _SETTINGS} | self._given,)

    # Django's settings are read when they are first needed: this object is made while they are imported.

    @cached_property
    def alias(self) -> str | None:
        """The Django alias; None where handles are bound."""
        return self._django_settings.database if self.django is True else self.django

    @cached_property
    def schema(self) -> str:
        given: str | None = self._given["schema"]
        if given is not None:
            return given
        return "public" if self.django is None else str(self._django_settings.schema)

    @cached_property
    def context(self) -> Context | None:
        given: Context | None = self._given["context"]
        if given is None and self.django is not None and self._django_settings.context:
            return Context(**self._django_settings.context)
        return given

    @property
    def _django_settings(self) -> Any:
        from outrider.producer.django.conf import get_settings

        return get_settings()

    @cached_property
    def _outbox(self) -> Outbox:
        return Outbox(schema=self.schema, context=None, outside_transaction="allow")

    @cached_property
    def _may_read(self) -> Statement:
        return Statement(queries_of(self.schema)["may_read_waiting_task"])

    @cached_property
    def _waiting_task(self) -> Statement:
        return Statement(queries_of(self.schema)["waiting_task"])

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

    def producer(
        self, sends_for_itself: Callable[[], bool], event_exchange: Callable[[], str]
    ) -> CapturingProducer | None:
        """
        A producer that captures; None where the call goes to the broker directly.

        sends_for_itself  whether Celery itself sends, not the application: outside a transaction that goes direct
        event_exchange    names the exchange of Celery's own events, which may vanish where no queue takes them
        """
        handle = self._handle_in_transaction()
        if handle is None and (self.outside_transaction == "direct" or sends_for_itself()):
            return None
        return CapturingProducer(
            partial(self._write, handle),
            partial(self._write_once, handle),
            self._declarations,
            event_exchange=event_exchange,
            hold_eta=self.hold_eta,
            add_context=None if self.context is None else self._add_context,
        )

    def _handle_in_transaction(self) -> Any:
        # The alias is resolved once per call, here.
        handle = next(reversed(self._bound.get()), None) if self.alias is None else connection_of(self.alias)
        return handle if handle is not None and adapter_for(handle).in_transaction(handle) else None

    def _write(self, handle: Any, rows: list[Row]) -> None:
        with self._writable(handle, rows[0]["event_type"]) as writable:
            if len(rows) == 1:
                written: int | None = self._outbox.write_row(writable, rows[0])
            else:
                written = self._outbox.write_rows(writable, rows)
            self._send_created(writable, rows, written)

    def _write_once(self, handle: Any, row: Row) -> bool | None:
        """True: written. None: not known yet (psycopg's pipeline mode). DuplicateTask: another one waits."""
        with self._writable(handle, row["event_type"]) as writable:
            for _ in range(WRITE_ONCE_ATTEMPTS):
                written = self._outbox.write_row(writable, row)
                if written:
                    self._send_created(writable, [row], written)
                    return True if written > 0 else None
                if not self._may_read_waiting_task(writable):
                    break
                if waiting := self._waiting_task_id(writable, row["dedup_key"]):
                    raise DuplicateTask(waiting)
        raise DuplicateTask(None)

    @contextmanager
    def _writable(self, handle: Any, task_name: str) -> Iterator[Any]:
        """The handle to write with; outside a transaction as `outside_transaction` says."""
        if handle is not None:
            yield handle
            return
        text = f"{task_name} is called outside a transaction: it is sent even if the work around it fails"
        if self.outside_transaction == "raise":
            raise OutsideTransactionError(text)
        if self.django is None and self.connect is None:
            raise OutsideTransactionError(f"{text}; to capture it, TaskOutbox needs `connect`")
        self._outside_calls.tell(task_name, text)
        if self.connect is None:
            yield self.alias
        else:
            with self.connect() as autocommit:
                yield autocommit

    def _may_read_waiting_task(self, handle: Any) -> bool:
        """A SELECT without the privilege would abort the application's transaction."""
        ((may_read,),) = adapter_for(handle).fetch(handle, self._may_read, {}, no_guard)
        return bool(may_read)

    def _waiting_task_id(self, handle: Any, dedup_key: str) -> str | None:
        found = adapter_for(handle).fetch(handle, self._waiting_task, {"dedup_key": dedup_key}, no_guard)
        if not found:
            return None
        event_id, properties = found[0]
        return task_id_of(event_id, None, json.loads(properties)) or str(event_id)

    def _send_created(self, handle: Any, rows: list[Row], written: Any) -> None:
        if self.django is not None:
            from outrider.producer.django.signals import send_created_for_tasks

            send_created_for_tasks(self, rows, written, using=getattr(handle, "alias", handle))

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


_SETTINGS = ("django", "connect", "outside_transaction", "exclude_tasks", "hold_eta")


def _make(settings: dict[str, Any]) -> TaskOutbox:
    return TaskOutbox(**settings)
