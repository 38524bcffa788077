"""
CapturingProducer: stands in for the kombu producer that Celery publishes with, and makes a row of each message.

`publish` does what kombu's does before it sends: serialize, compress, choose the delivery mode. The rows of one `with`
block are written together at its end, so that a group takes one round trip. A row with a dedup_key is written at once:
if it is a duplicate, the call must end there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from types import TracebackType
from typing import Any

import kombu.utils.json
from kombu import compression as kombu_compression
from kombu import entity, messaging, serialization
from kombu.utils import functional

from outrider.producer.celery.declarations import Declarations
from outrider.producer.encoding import check_json, check_text, quick_encoder
from outrider.producer.event import parse_event_id, split_moment
from outrider.producer.row import Row, make_row
from outrider.storage.task_id import event_id_of_task

Write = Callable[[list[Row]], None]
WriteOnce = Callable[[Row], bool | None]
"""Writes a row with a dedup_key. Returns whether it was written (None: not known yet); raises DuplicateTask."""
AddContext = Callable[[Row, dict[str, Any]], None]
"""Adds the context of the moment to a row and to its headers."""

# kombu is only half typed.
Producer: Any = messaging.Producer
_DEFAULT_EXCHANGE: Any = entity.Exchange("")
_compress: Any = kombu_compression.compress
_maybe_delivery_mode: Any = entity.maybe_delivery_mode
_maybe_list: Any = functional.maybe_list
_serialize: Any = serialization.dumps

# kombu.utils.json.dumps makes an encoder for each call.
_encode_json = quick_encoder(kombu.utils.json.JSONEncoder(separators=(",", ":"), allow_nan=False))
_DESCRIPTIONS = ("argsrepr", "kwargsrepr")
_is_canonical_uuid = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


class CapturingProducer(Producer):  # type: ignore[misc]
    """Never connects: its connection and channel have only what Celery uses while it enqueues."""

    def __init__(
        self,
        write: Write,
        write_once: WriteOnce,
        declarations: Declarations,
        *,
        event_exchange: Callable[[], str],
        hold_eta: bool = False,
        add_context: AddContext | None = None,
    ) -> None:
        super().__init__(None, _DEFAULT_EXCHANGE)
        self._write = write
        self._write_once = write_once
        self._event_exchange = event_exchange
        self._declarations = declarations
        self._hold_eta = hold_eta
        self._add_context = add_context
        self._open_blocks = 0
        self._rows: list[Row] = []
        self._declared_ahead: list[Any] = []
        self.new: bool | None = True
        """Of the last message with a dedup_key: see Receipt.new."""

    @property
    def connection(self) -> Any:
        return _Connection(self._declared_ahead.append)

    @property
    def channel(self) -> Any:
        return _Channel(self.connection)

    def __enter__(self) -> CapturingProducer:
        self._open_blocks += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_blocks -= 1
        if self._open_blocks == 0:
            rows, self._rows = self._rows, []
            if error is None and rows:
                self._write(rows)

    def publish(
        self,
        body: Any,
        routing_key: str | None = None,
        delivery_mode: Any = None,
        mandatory: bool | None = None,
        immediate: bool = False,  # noqa: ARG002
        priority: int | None = 0,
        content_type: str | None = None,
        content_encoding: str | None = None,
        serializer: str | None = None,
        headers: dict[str, Any] | None = None,
        compression: str | None = None,
        exchange: Any = None,
        retry: bool = False,  # noqa: ARG002  # the services retry
        retry_policy: Any = None,  # noqa: ARG002
        declare: Any = None,
        expiration: float | None = None,
        timeout: float | None = None,  # noqa: ARG002
        confirm_timeout: float | None = None,  # noqa: ARG002
        dedup_key: str | None = None,
        **properties: Any,
    ) -> None:
        headers = {} if headers is None else dict(headers)
        payload, content_type, content_encoding = _encode_body(
            body, serializer or self.serializer, content_type, content_encoding
        )
        if compression:
            payload, headers["compression"] = _compress(payload, compression)
        exchange = exchange or self.exchange
        if isinstance(exchange, entity.Exchange):
            delivery_mode = delivery_mode or exchange.delivery_mode
            exchange = exchange.name
        reply_to = properties.get("reply_to")
        properties |= {
            "delivery_mode": _maybe_delivery_mode(delivery_mode),
            "priority": priority,
            "reply_to": getattr(reply_to, "name", reply_to),
        }
        # The services publish with `mandatory`, unless the row says otherwise. Celery's events are for listeners that
        # may not be there.
        if mandatory is None and "task" not in headers:
            mandatory = exchange != self._event_exchange()
        if mandatory is False:
            properties["mandatory"] = False
        if expiration is not None:
            properties["expiration"] = expiration  # in seconds: the services subtract the time in the outbox
        declared = _maybe_list(declare) or ()
        if self._declared_ahead:
            declared = [*self._declared_ahead, *declared]
            self._declared_ahead.clear()
        row = make_row(
            event_id=_event_id(headers, body),
            event_type=_event_type(headers, body, routing_key),
            exchange=exchange,
            routing_key=self.routing_key if routing_key is None else routing_key,
            payload=payload.encode(content_encoding) if isinstance(payload, str) else bytes(payload),
            content_type=content_type,
            content_encoding=content_encoding,
            properties=_encode_properties(properties),
            declarations=self._declarations.render(declared),
            deliver_at=_held_until(headers, body) if self._hold_eta else None,
        )
        if self._add_context is not None:
            self._add_context(row, headers)
        row["headers"] = _encode_headers(headers)
        if dedup_key is not None:
            row["dedup_key"] = check_text("dedup_key", dedup_key, 1, 1000)
            self.new = self._write_once(row)
        elif self._open_blocks:
            self._rows.append(row)
        else:
            self._write([row])


class _Connection:
    """What Celery uses of a producer's connection before it publishes."""

    recoverable_connection_errors: tuple[type[Exception], ...] = ()
    recoverable_channel_errors: tuple[type[Exception], ...] = ()
    connection_errors: tuple[type[Exception], ...] = ()
    channel_errors: tuple[type[Exception], ...] = ()

    def __init__(self, declare: Callable[[Any], None]) -> None:
        self._declare = declare
        self.client = self

    def _reraise_as_library_errors(self) -> AbstractContextManager[None]:
        """Called by Celery around a publish. Database errors are raised as they are."""
        return nullcontext()

    def ensure(self, entity: Any, function: Any, **policy: Any) -> Callable[..., None]:  # noqa: ARG002
        """rpc:// declares its reply queue through this; the declaration goes into the row."""
        return lambda *arguments, **options: self._declare(entity)  # noqa: ARG005


class _Channel:
    def __init__(self, connection: _Connection) -> None:
        self.connection = connection


def _encode_properties(properties: dict[str, Any]) -> str:
    text = _encode_json({name: value for name, value in properties.items() if value is not None})
    check_json("a property", text)
    return text


def _encode_headers(headers: dict[str, Any]) -> str:
    """As Outbox.publish, except that Celery's descriptions of the arguments may hold what the arguments hold."""
    text = _encode_json(headers)
    try:
        check_json("a header", text)
    except ValueError:
        check_json("a header", _encode_json({name: headers[name] for name in headers if name not in _DESCRIPTIONS}))
    return text


def _encode_body(
    body: Any, serializer: str | None, content_type: str | None, content_encoding: str | None
) -> tuple[Any, str, str]:
    """As kombu does: a body that comes with a content type is serialized already."""
    if not content_type:
        content_type, content_encoding, body = _serialize(body, serializer=serializer)
        return body, content_type or "", content_encoding or "utf-8"
    if isinstance(body, str):
        return body.encode(content_encoding or "utf-8"), content_type, content_encoding or "utf-8"
    return body, content_type, content_encoding or "binary"


def _event_id(headers: dict[str, Any], body: Any) -> str:
    """The task's id, or a UUID made from it: the message has one identity from the call to the worker."""
    task_id = headers.get("id") or (body.get("id") if isinstance(body, dict) else None)
    if isinstance(task_id, str) and _is_canonical_uuid(task_id):
        return task_id
    return str(parse_event_id(None) if task_id is None else event_id_of_task(str(task_id)))


def _event_type(headers: dict[str, Any], body: Any, routing_key: str | None) -> str:
    """The task's name; the type of one of Celery's own events; the routing key of anything else."""
    inside = body if isinstance(body, dict) else {}
    return str(headers.get("task") or inside.get("task") or inside.get("type") or routing_key or "message")


def _held_until(headers: dict[str, Any], body: Any) -> str | None:
    eta = headers.get("eta") or (body.get("eta") if isinstance(body, dict) else None)
    moment = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
    # The worker decides what an eta without a time zone means: such a task is sent at once, and waits there.
    return split_moment("eta", moment)[0] if isinstance(moment, datetime) and moment.tzinfo else None
