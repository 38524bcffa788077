"""
Moulds: the message of a plain task call as Celery made it once, to be cast again with other arguments.

Of the time of a call, Celery spends most on finding out what does not change from call to call: where the task is
routed, what is declared, which properties it has. So for a plain call (`task.delay(...)`, or `apply_async` with nothing
but options of the task itself) Celery does all of it the first time, and what it hands to the producer is kept: the
next call with the same options differs only in id, arguments and their descriptions. Nothing of Celery is done again
here, and whatever could make a call differ sends it the long way: signals that listen, a parent task, stamps, links,
times, routers that are functions, event messages, subclasses and instrumentation of Celery, changed settings.

The differential test makes every call twice and compares both with what stock Celery sends.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, NamedTuple

from celery import signals
from celery.app import amqp as celery_amqp
from celery.app import base, routes
from celery.utils.nodenames import anon_nodename
from kombu.utils.uuid import uuid

from producer.celery.capture import CapturingProducer
from producer.celery.description import describe

MAX_MOULDS = 1_000
"""Options can be different each time: what is kept of them must not grow without bound."""

# What Task.apply_async passes for a task that is called with nothing but arguments; `expires` and the links are None.
_PLAIN_OPTIONS = frozenset(
    (
        *("task_id", "producer", "link", "link_error", "result_cls", "shadow", "task_type", "ignore_result"),
        *("queue", "routing_key", "exchange", "priority", "expires", "serializer", "delivery_mode", "compression"),
        *("time_limit", "soft_time_limit", "immediate", "mandatory"),
    )
)
_MUST_BE_NONE = ("producer", "link", "link_error", "expires")


class Mould(NamedTuple):
    """What Celery gave to `Producer.publish`, and what it depended on."""

    headers: dict[str, Any]
    rest: dict[str, Any]
    embedded: dict[str, Any]
    """The third part of the body: callbacks, errbacks, chain and chord, none of which a plain call has."""
    router: Any
    default_queue: Any
    queue: Any
    """The configured queue that is declared, if one is."""


class ObservedProducer(CapturingProducer):
    """A producer that remembers what Celery gave it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.published: list[tuple[Any, dict[str, Any]]] = []
        self.declared_ahead = False

    def publish(self, body: Any, **options: Any) -> None:  # type: ignore[override]
        self.declared_ahead |= self.has_declared_ahead
        self.published.append((body, options))
        super().publish(body, **options)


class Moulds:
    """The moulds of one application."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._moulds: dict[Any, Mould | None] = {}

    def key(self, name: str, options: dict[str, Any]) -> Any:
        """What calls have in common that share a mould; None where there can be none."""
        if not (
            _PLAIN_OPTIONS.issuperset(options)
            and options.get("task_type") is not None
            and options.get("result_cls") is not None
            and all(options.get(each) is None for each in _MUST_BE_NONE)
            and not signals.before_task_publish.receivers
            and not signals.after_task_publish.receivers
            and not signals.task_sent.receivers
            and self._app.current_worker_task is None
            and not self._app.conf.task_send_sent_event
        ):
            return None
        options = {**options, "task_id": None}
        key = (name, *options.items(), *map(type, options.values()))  # True is 1, but not in JSON
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def cast(self, key: Any, args: Any, kwargs: Any, options: dict[str, Any], producer: CapturingProducer) -> Any:
        """Publish without Celery; the result of the call, or None where it must go the long way."""
        app, mould = self._app, self._moulds.get(key)
        if mould is None:
            return None
        amqp = app.amqp
        if (
            amqp.router is not mould.router
            or app.conf.task_default_queue != mould.default_queue
            or (mould.queue is not None and amqp.queues.get(mould.queue.name) is not mould.queue)
        ):
            self._moulds.pop(key, None)  # the next call makes a new one
            return None
        args, kwargs = args or (), kwargs or {}
        argsrepr = describe(args, amqp.argsrepr_maxsize)
        kwargsrepr = describe(kwargs, amqp.kwargsrepr_maxsize)
        if argsrepr is None or kwargsrepr is None or type(kwargs) is not dict or type(args) is dict:
            return None
        task_id = options.get("task_id") or uuid()
        headers = mould.headers | {
            "id": task_id,
            "root_id": task_id,
            "argsrepr": argsrepr,
            "kwargsrepr": kwargsrepr,
            "origin": anon_nodename(),
        }
        with producer:
            producer.publish(
                (args, kwargs, mould.embedded),
                headers=headers,
                correlation_id=task_id,
                reply_to=app.thread_oid,
                **mould.rest,
            )
        result = options["result_cls"](task_id)
        result.ignored = options.get("ignore_result")
        return result

    def knows(self, key: Any) -> bool:
        return key in self._moulds

    def learn(self, key: Any, producer: ObservedProducer) -> None:
        """Keep what Celery published for a call with this key, if nothing but the arguments can differ next time."""
        if len(self._moulds) >= MAX_MOULDS:
            self._moulds.clear()
        # rpc:// declares its reply queue for each call.
        once = len(producer.published) == 1 and not producer.declared_ahead
        self._moulds[key] = self._mould(*producer.published[0]) if once else None

    def _mould(self, body: Any, options: dict[str, Any]) -> Mould | None:
        amqp, headers = self._app.amqp, options.get("headers")
        if not (
            type(amqp) is celery_amqp.AMQP
            and type(amqp.router) is routes.Router
            and all(type(route) is routes.MapRoute for route in amqp.router.routes)
            and isinstance(headers, dict)
            and isinstance(body, tuple)
            and len(body) == 3
            and headers.get("id") == headers.get("root_id") == options.get("correlation_id")
            and options.get("reply_to") == self._app.thread_oid
            and not any(body[2].values())
        ):
            return None
        rest = {name: value for name, value in options.items() if name not in _EACH_TIME}
        declared = options.get("declare") or [None]
        queue = next((each for each in declared if each is not None and amqp.queues.get(each.name) is each), None)
        return Mould(headers, rest, body[2], amqp.router, self._app.conf.task_default_queue, queue)


_EACH_TIME = ("headers", "correlation_id", "reply_to")


def is_genuine(send_task: Any) -> bool:
    """Whether this is Celery's own method: one that is overridden or instrumented has more to do than we know."""
    function = getattr(send_task, "__func__", None)
    return type(function) is FunctionType and function.__code__.co_filename == base.__file__
