"""
Moulds: the message of a plain task call as Celery made it once, to be cast again with other arguments.

Of the time of a call, Celery spends most on finding out what does not change from call to call: where the task is
routed, what is declared, which properties it has. So for a plain call (`task.delay(...)`, or `apply_async` with nothing
but options of the task itself) Celery does all of it the first time, and the row that came of it is kept: the next call
with the same options differs only in id, arguments and their descriptions. Nothing of Celery is done again here, and
whatever could make a call differ sends it the long way: signals that listen, a parent task, stamps, links, times,
routers that are functions, event messages, subclasses and instrumentation of Celery, changed settings.

The differential test makes every call twice and compares both with what stock Celery sends.
"""

from __future__ import annotations

import json
from types import FunctionType
from typing import Any, NamedTuple

import kombu.compression
import kombu.utils.json
from celery import signals
from celery.app import amqp as celery_amqp
from celery.app import base, routes
from celery.utils.nodenames import anon_nodename
from kombu import serialization
from kombu.utils.uuid import uuid

from outrider.producer.celery.capture import CapturingProducer, Write, encode_json, event_id_of
from outrider.producer.celery.description import describe
from outrider.producer.encoding import quick_encoder
from outrider.producer.event import Row

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


class Mould(NamedTuple):
    """The row of a call, what of it is made anew for the next one, and what it depended on."""

    row: Row
    headers: dict[str, Any]
    properties: dict[str, Any]
    embedded: dict[str, Any]
    """The third part of the body: callbacks, errbacks, chain and chord, none of which a plain call has."""
    serializer: str
    compression: Any
    router: Any
    default_queue: Any
    queue: Any
    """The configured queue that is declared, if one is."""


class ObservedProducer(CapturingProducer):
    """A producer that remembers what Celery gave it, and the rows that it made of it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.published: list[tuple[Any, dict[str, Any]]] = []
        self.rows: list[Row] = []
        self.declared_ahead = False

    def publish(self, body: Any, **options: Any) -> None:  # type: ignore[override]
        self.declared_ahead |= self.has_declared_ahead
        self.published.append((body, options))
        super().publish(body, **options)

    def _keep(self, row: Row) -> None:
        self.rows.append(row)
        super()._keep(row)


class Moulds:
    """The moulds of one application."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._moulds: dict[Any, Mould | None] = {}

    def key(self, name: str, options: dict[str, Any]) -> Any:
        """What calls have in common that share a mould; None where there can be none."""
        get = options.get
        if not (
            _PLAIN_OPTIONS.issuperset(options)
            and get("task_type") is not None
            and get("result_cls") is not None
            and get("producer") is get("link") is get("link_error") is get("expires") is None
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

    def cast(self, key: Any, args: Any, kwargs: Any, options: dict[str, Any], write: Write) -> Any:
        """Write the row without Celery; the result of the call, or None where it must go the long way."""
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
        serialized = _serialize((args, kwargs, mould.embedded), mould)
        if serialized is None:
            return None
        payload, compression = serialized
        task_id = options.get("task_id") or uuid()
        headers = mould.headers | {
            "id": task_id,
            "root_id": task_id,
            "argsrepr": argsrepr,
            "kwargsrepr": kwargsrepr,
            "origin": anon_nodename(),
        }
        row = mould.row | {
            "event_id": event_id_of(headers, None),
            "payload": payload,
            "properties": encode_json(
                mould.properties | {"correlation_id": task_id, "reply_to": app.thread_oid},
            ),
        }
        if compression is not None:
            headers["compression"] = compression
        if (add_context := app.outbox.add_context) is not None:
            add_context(row, headers)
        row["headers"] = encode_json(headers)
        write([row])
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
        once = len(producer.published) == len(producer.rows) == 1 and not producer.declared_ahead
        self._moulds[key] = self._mould(producer.rows[0], *producer.published[0]) if once else None

    def _mould(self, row: Row, body: Any, options: dict[str, Any]) -> Mould | None:
        amqp, headers, serializer = self._app.amqp, options.get("headers"), options.get("serializer")
        properties = json.loads(row["properties"])
        if not (
            type(amqp) is celery_amqp.AMQP
            and type(amqp.router) is routes.Router
            and all(type(route) is routes.MapRoute for route in amqp.router.routes)
            and isinstance(headers, dict)
            and isinstance(body, tuple)
            and len(body) == 3
            and headers.get("id") == headers.get("root_id") == options.get("correlation_id")
            and options.get("reply_to") == properties.get("reply_to") == self._app.thread_oid
            and properties.get("correlation_id") == headers["id"]
            and not any(body[2].values())
            and isinstance(serializer, str)
            and not options.get("content_type")
        ):
            return None
        declared = options.get("declare") or [None]
        queue = next((each for each in declared if each is not None and amqp.queues.get(each.name) is each), None)
        return Mould(
            *(row, headers, properties, body[2], serializer, options.get("compression")),
            *(amqp.router, self._app.conf.task_default_queue, queue),
        )


def _serialize(body: Any, mould: Mould) -> tuple[bytes, str | None] | None:
    """The payload as kombu makes it, and how it is compressed; None if it would be of another kind, or none at all."""
    registered: Any = serialization.registry._encoders.get(mould.serializer)
    if registered is None or registered[:2] != (mould.row["content_type"], mould.row["content_encoding"]):
        return None
    content_encoding, encode = registered[1:]
    try:
        encoded = _json(body) if encode is _KOMBU_DUMPS else encode(body)
        if mould.compression:
            compressed, how = kombu.compression.compress(encoded, mould.compression)
            return bytes(compressed), how
    except Exception:
        return None  # Celery's own way ends in the error that it should
    return (encoded.encode(content_encoding) if isinstance(encoded, str) else bytes(encoded)), None


# What kombu.utils.json.dumps makes anew for each call.
_KOMBU_DUMPS: Any = kombu.utils.json.dumps
_json = quick_encoder(kombu.utils.json.JSONEncoder())


def is_genuine(send_task: Any) -> bool:
    """Whether this is Celery's own method: one that is overridden or instrumented has more to do than we know."""
    function = getattr(send_task, "__func__", None)
    return type(function) is FunctionType and function.__code__.co_filename == base.__file__
