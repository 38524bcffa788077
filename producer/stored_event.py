"""
StoredEvent: an event as it is in the log, and the page of events that a read of the log returns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from outrider.producer.encoding import JSON, TEXT, Encoded
from outrider.producer.event_types import EventTypes
from outrider.producer.payload_codec import FORGOTTEN, Forgotten
from outrider.producer.position import Position


class StoredEvent(NamedTuple):
    """An event in the log."""

    stream: str
    version: int
    """1 for the first event of the stream."""
    event_id: UUID
    event_type: str
    payload: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    """The event's own headers. The headers of the context are in the published message only."""
    created_at: datetime
    type_version: int
    """The version of the payload's schema."""
    position: Position
    """The place in the log."""
    types: EventTypes | None = None
    """What turns the payload into `data`."""

    @property
    def category(self) -> str:
        """The stream's name up to the first colon."""
        return self.stream.partition(":")[0]

    @property
    def data(self) -> Any:
        """
        The payload, decoded: JSON as values, text as str, the rest as bytes; upcast, and an instance of its class where
        that is registered. Forgotten, if the subject of its payload was forgotten.
        """
        data = decode_data(self.payload, self.content_type, self.content_encoding)
        if self.types is None or isinstance(data, Forgotten):
            return data
        return self.types.decode(self.event_type, self.type_version, data)


class EventPage(list[StoredEvent]):
    """Events of the log in order: a list, and where the next page begins."""

    def __init__(self, events: Iterable[StoredEvent], next_position: Position) -> None:
        super().__init__(events)
        self.next_position = next_position
        """`after` of the next read. All matching events up to here have been returned, so it can be later than the last
        one. This is what a reader stores as its checkpoint."""


def decode_data(payload: bytes, content_type: str, content_encoding: str) -> Any:
    """The value of a payload without its class."""
    if content_type == JSON:
        return json.loads(payload)
    if content_type == FORGOTTEN:
        return Forgotten(payload.decode())
    return payload.decode(content_encoding) if content_type == TEXT else payload


def stored_event(row: Sequence[Any], encoded: Encoded, types: EventTypes | None) -> StoredEvent:
    """The event of a row of the columns `stored_columns`, with its payload as the codec decoded it."""
    stream, version, event_id, event_type, _, _, _, headers, created_at = row[:9]
    return StoredEvent(
        stream,
        version,
        UUID(event_id),
        event_type,
        *encoded,
        json.loads(headers) if headers != "{}" else {},
        created_at,
        row[9],
        Position(row[10], row[11], row[12]),
        types,
    )
