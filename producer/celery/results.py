"""
Enqueuing a task makes no request to the result backend: the transaction may still be rolled back.

- Redis subscribes to the result of a task when the task is called, and a group subscribes to the results of its
  members. Both subscriptions are made when a result is waited for; the wait also reads results that arrived before it.
  A callback of `result.then` is therefore called during a wait, as without gevent or eventlet.
- rpc:// declares its reply queue when a task is called. The capturing producer records that in the row.
- A database backend creates its tables when it is made, which is at the first call. Outside of workers, they are
  created when a result is first read or written.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.backends.rpc import RPCBackend

from outrider.producer.celery.capture import CapturingProducer


@contextmanager
def create_no_tables(conf: Any) -> Iterator[None]:
    """Inside the block, a database backend is made without creating its tables."""
    if not conf.get("database_create_tables_at_setup"):
        yield
        return
    conf.database_create_tables_at_setup = False
    try:
        yield
    finally:
        conf.database_create_tables_at_setup = True


def defer_subscriptions(backend: Any) -> Any:
    """Make this backend subscribe when a result is waited for. A second call changes nothing. Returns the backend."""
    if "on_task_call" in vars(backend):
        return backend
    on_task_call = backend.on_task_call

    def on_captured_task_call(producer: Any, task_id: str) -> Any:
        if isinstance(producer, CapturingProducer) and not isinstance(backend, RPCBackend):
            return {}
        return on_task_call(producer, task_id)

    backend.on_task_call = on_captured_task_call
    if hasattr(backend, "result_consumer"):
        _defer_pending_results(backend)
    return backend


def _defer_pending_results(backend: Any) -> None:
    """Keep added results, by weak references, and add them to the backend before it waits for any result."""
    deferred: dict[int, tuple[weakref.ref[Any], bool]] = {}
    add_pending_result = backend.add_pending_result

    def add_later(result: Any, weak: bool = False, **options: Any) -> Any:  # noqa: ARG001
        # By identity: two results of the same task are equal, and both can be waited for.
        key = id(result)
        deferred[key] = (weakref.ref(result, lambda _: deferred.pop(key, None)), weak)
        return result

    def adding_first(wait: Any) -> Any:
        def add_and_wait(*args: Any, **options: Any) -> Any:
            while deferred:
                reference, weak = deferred.popitem()[1]
                if (result := reference()) is not None:
                    add_pending_result(result, weak=weak)
            return wait(*args, **options)

        return add_and_wait

    backend.add_pending_result = add_later
    backend.iter_native = adding_first(backend.iter_native)
    backend.wait_for_pending = adding_first(backend.wait_for_pending)
