"""
Result backends must not be asked anything when a task is enqueued: it may never be sent.

Redis subscribes to a task's result as soon as the task is called, and a group subscribes to each of its members. Both
are put off until somebody waits for a result; the wait itself reads what has arrived before. rpc:// declares its reply
queue at the call: that is recorded into the row, and is not put off.
"""

from __future__ import annotations

import weakref
from typing import Any

from celery.backends.rpc import RPCBackend

from producer.celery.capture import CapturingProducer


def defer_subscriptions(backend: Any) -> Any:
    """Wrap the methods of this instance that subscribe, and those that wait."""
    on_task_call = backend.on_task_call

    def call(producer: Any, task_id: str) -> Any:
        if isinstance(producer, CapturingProducer) and not isinstance(backend, RPCBackend):
            return {}
        return on_task_call(producer, task_id)

    backend.on_task_call = call
    if hasattr(backend, "result_consumer"):
        _put_off_weak_results(backend)
    return backend


def _put_off_weak_results(backend: Any) -> None:
    put_off: weakref.WeakSet[Any] = weakref.WeakSet()
    add_pending_result = backend.add_pending_result

    def add(result: Any, weak: bool = False, **options: Any) -> Any:
        # Celery is weak only where a group watches its members, which nobody waits for yet.
        if weak:
            put_off.add(result)
            return result
        return add_pending_result(result, weak=weak, **options)

    def subscribe_first(wait: Any) -> Any:
        def waiting(*args: Any, **options: Any) -> Any:
            while put_off:
                add_pending_result(put_off.pop(), weak=True)
            return wait(*args, **options)

        return waiting

    backend.add_pending_result = add
    backend.iter_native = subscribe_first(backend.iter_native)
    backend.wait_for_pending = subscribe_first(backend.wait_for_pending)
