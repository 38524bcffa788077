"""
Result backends must not be asked anything when a task is enqueued: it may never be sent.

Redis subscribes to a task's result as soon as the task is called, and a group (also one inside a chain) to each of its
members. Both are put off until somebody waits for a result; the wait itself reads what has arrived before. A callback
given to `result.then` is therefore called while somebody waits, as it is without gevent or eventlet anyway. rpc://
declares its reply queue at the call: that is recorded into the row, and is not put off. A database makes its tables as
soon as there is a backend, which is at the first call: outside of workers, they are made when a result is first asked
for.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.backends.rpc import RPCBackend

from outrider.producer.celery.capture import CapturingProducer


@contextmanager
def no_tables_at_setup(conf: Any) -> Iterator[None]:
    """Inside the block, a backend that keeps results in a database is made without asking the database."""
    if not conf.get("database_create_tables_at_setup"):
        yield
        return
    conf.database_create_tables_at_setup = False
    try:
        yield
    finally:
        conf.database_create_tables_at_setup = True


def defer_subscriptions(backend: Any) -> Any:
    """Wrap the methods of this instance that subscribe, and those that wait."""
    on_task_call = backend.on_task_call

    def call(producer: Any, task_id: str) -> Any:
        if isinstance(producer, CapturingProducer) and not isinstance(backend, RPCBackend):
            return {}
        return on_task_call(producer, task_id)

    backend.on_task_call = call
    if hasattr(backend, "result_consumer"):
        _put_off(backend)
    return backend


def _put_off(backend: Any) -> None:
    """Results that were added are only remembered, weakly, until somebody waits for any of them."""
    put_off: dict[int, tuple[weakref.ref[Any], bool]] = {}
    add_pending_result = backend.add_pending_result

    def add(result: Any, weak: bool = False, **options: Any) -> Any:  # noqa: ARG001
        # By identity: results that are equal, because they are of the same task, are all waited for.
        key = id(result)
        put_off[key] = (weakref.ref(result, lambda _: put_off.pop(key, None)), weak)
        return result

    def add_first(wait: Any) -> Any:
        def waiting(*args: Any, **options: Any) -> Any:
            while put_off:
                reference, weak = put_off.popitem()[1]
                if (result := reference()) is not None:
                    add_pending_result(result, weak=weak)
            return wait(*args, **options)

        return waiting

    backend.add_pending_result = add
    backend.iter_native = add_first(backend.iter_native)
    backend.wait_for_pending = add_first(backend.wait_for_pending)
