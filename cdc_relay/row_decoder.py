"""
From pgoutput's inserts to messages: knows what the outbox table looks like at this point of the stream.

Inserts into other tables of the publication are skipped. A row that cannot be read is skipped too, with an error in the
log: it is in the table, and falls due for the scheduler.
"""

from __future__ import annotations

from outrider.cdc_relay.pgoutput import Relation, RowReader, relation_id_of
from outrider.errors import ProtocolError
from outrider.storage.message import Message
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

REPEATING = frozenset(
    (
        *("schema_version", "event_type", "aggregate_type", "exchange", "routing_key"),
        *("content_type", "content_encoding", "declarations", "context", "dedup_key"),
        *("attempts", "owner", "claimed_by", "last_error", "last_failed_at"),
    )
)
"""Columns in which rows that follow each other are mostly alike; many are null in every new row."""


class RowDecoder:
    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._readers: dict[int, RowReader | None] = {}

    def learn(self, relation: Relation) -> None:
        """What the next rows of a table look like. ProtocolError when the outbox lacks a column that we need."""
        ours = relation.name == "outbox" and relation.namespace == self._schema
        fields = Message._fields
        self._readers[relation.relation_id] = (
            RowReader(relation, fields, required=fields, repeating=REPEATING, uuids_as_text=True) if ours else None
        )

    def read(self, insert: bytes) -> Message | None:
        try:
            reader = self._readers[relation_id_of(insert)]
        except KeyError:
            raise ProtocolError("a row of a relation that the server has not described") from None
        if reader is None:
            return None
        try:
            return Message._make(reader.read(insert))
        except ProtocolError as error:
            log.error("row_left_unread", reason=str(error))
            return None
