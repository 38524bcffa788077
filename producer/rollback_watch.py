"""
RollbackWatch: for tests. Forgets what was recorded in a transaction or after a savepoint that is rolled back.

It sees the transactions of Django's connections (`atomic`, savepoints made by hand) and of SQLAlchemy's sessions. Those
of other handles are not seen. Nothing here runs a statement or opens a connection.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class _Recorded(NamedTuple):
    place: int
    connection: Any
    forget: Callable[[], None]


class RollbackWatch:
    """Call `record` for each thing that is recorded; the other methods are called when a transaction moves on."""

    def __init__(self) -> None:
        self._place = 0
        self._recorded: list[_Recorded] = []
        self._savepoints: dict[tuple[int, Any], int] = {}

    def record(self, handle: Any, forget: Callable[[], None]) -> None:
        """`forget` is called if the transaction of the handle is rolled back to a point before this call."""
        if (connection := _connection_in_transaction(handle)) is not None:
            self._place += 1
            self._recorded.append(_Recorded(self._place, connection, forget))

    def savepoint(self, connection: Any, name: Any) -> None:
        self._savepoints[id(connection), name] = self._place

    def rolled_back_to(self, connection: Any, name: Any) -> None:
        self._rolled_back_after(connection, self._savepoints.get((id(connection), name), 0))

    def rolled_back(self, connection: Any) -> None:
        self._rolled_back_after(connection, 0)

    def committed(self, connection: Any) -> None:
        self._recorded = [each for each in self._recorded if each.connection is not connection]

    def _rolled_back_after(self, connection: Any, place: int) -> None:
        kept = []
        for each in self._recorded:
            if each.connection is connection and each.place > place:
                each.forget()
            else:
                kept.append(each)
        self._recorded = kept


def watch_django(watch: RollbackWatch, replace: Callable[[Any, str, Any], None]) -> None:
    """`replace(class, name, method)` replaces a method until the end of the test."""
    from django.db.backends.base.base import BaseDatabaseWrapper

    savepoint, savepoint_rollback = BaseDatabaseWrapper.savepoint, BaseDatabaseWrapper.savepoint_rollback
    rollback, commit = BaseDatabaseWrapper.rollback, BaseDatabaseWrapper.commit

    def watched_savepoint(self: Any) -> Any:
        name = savepoint(self)
        watch.savepoint(self, name)
        return name

    def watched_savepoint_rollback(self: Any, sid: str) -> None:
        savepoint_rollback(self, sid)
        watch.rolled_back_to(self, sid)

    def watched_rollback(self: Any) -> None:
        rollback(self)
        watch.rolled_back(self)

    def watched_commit(self: Any) -> None:
        commit(self)
        watch.committed(self)

    replace(BaseDatabaseWrapper, "savepoint", watched_savepoint)
    replace(BaseDatabaseWrapper, "savepoint_rollback", watched_savepoint_rollback)
    replace(BaseDatabaseWrapper, "rollback", watched_rollback)
    replace(BaseDatabaseWrapper, "commit", watched_commit)


def watch_sqlalchemy(watch: RollbackWatch) -> Callable[[], None]:
    """Returns the function that ends it."""
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    def begun(session: Any, transaction: Any) -> None:
        if transaction.nested:
            watch.savepoint(session, transaction)

    def rolled_back(session: Any, transaction: Any) -> None:
        if transaction.nested:
            watch.rolled_back_to(session, transaction)

    def committed(session: Any) -> None:
        if not session.in_nested_transaction():
            watch.committed(session)

    def ended(session: Any, transaction: Any) -> None:
        if transaction.parent is None:
            watch.rolled_back(session)  # what was not committed

    listeners: list[tuple[str, Callable[..., Any]]] = [
        ("after_transaction_create", begun),
        ("after_soft_rollback", rolled_back),
        ("after_commit", committed),
        ("after_transaction_end", ended),
    ]
    for name, listener in listeners:
        event.listen(Session, name, listener)

    def stop() -> None:
        for name, listener in listeners:
            event.remove(Session, name, listener)

    return stop


def _connection_in_transaction(handle: Any) -> Any:
    """What the transactions of a handle belong to; None where they are not watched, or there is none."""
    if isinstance(handle, str):
        django = sys.modules.get("django.db")
        if django is None or not sys.modules["django.conf"].settings.configured:
            return None
        if handle not in django.connections.settings:
            return None
        handle = django.connections[handle]
    if hasattr(handle, "in_atomic_block"):
        return handle if handle.in_atomic_block else None
    session = getattr(handle, "sync_session", handle)
    kind = type(session).__mro__
    is_session = any(each.__name__ == "Session" and each.__module__.startswith("sqlalchemy.") for each in kind)
    return session if is_session and session.in_transaction() else None
