"""
CapturingProducer: a kombu producer that renders a message and keeps it, instead of sending it.

It looks to Celery like a producer from the pool. `publish` does what kombu's does up to the wire (serialize, compress,
delivery mode) and turns the result into a row. Rows of one `with` block are written together at its end: a group is
one round trip.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from types import TracebackType
from typing import Any
from uuid import UUID

import kombu.utils.json
from kombu import entity, messaging
from kombu.utils import functional

from outrider.producer.celery.declarations import Declarations
from outrider.producer.encoding import quick_encoder
from outrider.producer.event import Row, parse_event_id, split_moment

Write = Callable[[list[Row]], None]

# kombu is only half typed.
Producer: Any = messaging.Producer
_DEFAULT_EXCHANGE: Any = entity.Exchange("")
_maybe_list: Any = functional.maybe_list

# What kombu.utils.json.dumps makes anew for each call.
encode_json = quick_encoder(kombu.utils.json.JSONEncoder(separators=(",", ":")))
_is_canonical_uuid = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


class CapturingProducer(Producer):  # type: ignore[misc]
    """Never connects: its connection and channel know only what Celery asks of them while it enqueues."""

    def __init__(
        self,
        write: Write,
        declarations: Declarations,
        *,
        hold_eta: bool = False,
        add_context: Callable[[Row, dict[str, Any]], None] | None = None,
    ) -> None:
        super().__init__(None, _DEFAULT_EXCHANGE)
        self._write = write
        self._declarations = declarations
        self._hold_eta = hold_eta
        self._add_context = add_context
        self._blocks = 0
        self._rows: list[Row] = []
        self._declared_ahead: list[Any] = []

    @property
    def has_declared_ahead(self) -> bool:
        """Whether something was declared for the next message only: rpc:// does so."""
        return bool(self._declared_ahead)

    @property
    def connection(self) -> Any:
        return _Connection(self._declared_ahead.append)

    @property
    def channel(self) -> Any:
        return _Channel(self.connection)

    def __enter__(self) -> CapturingProducer:
        self._blocks += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks -= 1
        if self._blocks == 0:
            rows, self._rows = self._rows, []
            if error is None and rows:
                self._write(rows)

    def publish(
        self,
        body: Any,
        routing_key: str | None = None,
        delivery_mode: Any = None,
        mandatory: bool = False,  # noqa: ARG002  # always set by the delivery
        immediate: bool = False,  # noqa: ARG002
        priority: int | None = 0,
        content_type: str | None = None,
        content_encoding: str | None = None,
        serializer: str | None = None,
        headers: dict[str, Any] | None = None,
        compression: str | None = None,
        exchange: Any = None,
        retry: bool = False,  # noqa: ARG002  # the services' business, from here on
        retry_policy: Any = None,  # noqa: ARG002
        declare: Any = None,
        expiration: float | None = None,
        timeout: float | None = None,  # noqa: ARG002
        confirm_timeout: float | None = None,  # noqa: ARG002
        **properties: Any,
    ) -> None:
        headers = {} if headers is None else dict(headers)
        exchange_name, mode = self._delivery_details(exchange or self.exchange, delivery_mode)
        encoded, content_type, content_encoding = self._prepare(
            body, serializer, content_type, content_encoding, compression, headers
        )
        reply_to = properties.get("reply_to")
        properties |= {"delivery_mode": mode, "priority": priority, "reply_to": getattr(reply_to, "name", reply_to)}
        if expiration is not None:
            properties["expiration"] = expiration  # in seconds: the delivery takes off the time in the outbox
        declared = _maybe_list(declare) or ()
        if self._declared_ahead:
            declared = [*self._declared_ahead, *declared]
            self._declared_ahead.clear()
        row = {
            "event_id": event_id_of(headers, body),
            "event_type": _event_type(headers, body, routing_key),
            "aggregate_type": None,
            "aggregate_id": None,
            "ordering_key": None,
            "exchange": exchange_name,
            "routing_key": self.routing_key if routing_key is None else routing_key,
            "payload": encoded.encode(content_encoding or "utf-8") if isinstance(encoded, str) else bytes(encoded),
            "content_type": content_type,
            "content_encoding": content_encoding,
            "headers": "{}",
            "properties": encode_json({name: value for name, value in properties.items() if value is not None}),
            "declarations": self._declarations.render(declared),
            "context": None,
            "dedup_key": None,
            "expires_at": None,
            "expires_in_seconds": None,
            "deliver_at": self._held_until(headers, body) if self._hold_eta else None,
            "deliver_in_seconds": None,
        }
        if self._add_context is not None:
            self._add_context(row, headers)
        row["headers"] = encode_json(headers)
        self._keep(row)

    def _keep(self, row: Row) -> None:
        if self._blocks:
            self._rows.append(row)
        else:
            self._write([row])

    def _held_until(self, headers: dict[str, Any], body: Any) -> str | None:
        eta = headers.get("eta") or (body.get("eta") if isinstance(body, dict) else None)
        moment = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        # What a naive eta means is for the worker to decide: it is sent as it is, and waits there.
        return split_moment("eta", moment)[0] if isinstance(moment, datetime) and moment.tzinfo else None


class _Connection:
    """The few things that Celery asks of a producer's connection before it publishes."""

    recoverable_connection_errors: tuple[type[Exception], ...] = ()
    recoverable_channel_errors: tuple[type[Exception], ...] = ()
    connection_errors: tuple[type[Exception], ...] = ()
    channel_errors: tuple[type[Exception], ...] = ()

    def __init__(self, declare: Callable[[Any], None]) -> None:
        self._declare = declare
        self.client = self

    def _reraise_as_library_errors(self) -> AbstractContextManager[None]:
        """The database's errors are not the broker's: they come out as they are."""
        return nullcontext()

    def ensure(self, entity: Any, function: Any, **policy: Any) -> Callable[..., None]:  # noqa: ARG002
        """What rpc:// declares through the channel, its reply queue, goes into the row."""
        return lambda *arguments, **options: self._declare(entity)  # noqa: ARG005


class _Channel:
    def __init__(self, connection: _Connection) -> None:
        self.connection = connection


def event_id_of(headers: dict[str, Any], body: Any) -> str:
    """The task's id, where it is a UUID: one identity from the call to the worker."""
    task_id = headers.get("id") or (body.get("id") if isinstance(body, dict) else None)
    if isinstance(task_id, str) and _is_canonical_uuid(task_id):
        return task_id
    try:
        return str(UUID(task_id))
    except (TypeError, ValueError, AttributeError):
        return str(parse_event_id(None))


def _event_type(headers: dict[str, Any], body: Any, routing_key: str | None) -> str:
    """The task's name; the type of one of Celery's own events; the routing key of anything else."""
    inside = body if isinstance(body, dict) else {}
    return str(headers.get("task") or inside.get("task") or inside.get("type") or routing_key or "message")
