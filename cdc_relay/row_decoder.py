"""
Decode the inserts of the replication stream into messages, by the columns that the outbox table has at that point.

Inserts into other tables of the publication are skipped. A row that cannot be decoded is skipped with an error in the
log: it stays in the table and falls due for the scheduler.
"""

from __future__ import annotations

from outrider.cdc_relay.pgoutput import Relation, RowReader
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
"""Columns that mostly hold the same value in consecutive rows; many are null in every new row."""


class RowDecoder:
    def __init__(self, schema: str) -> None:
        self._schema = schema
        # By the relation's id, as an insert has it. None: another table.
        self._readers: dict[bytes, RowReader | None] = {}

    def set_relation(self, relation: Relation) -> None:
        """Use these columns for the next rows of the table. ProtocolError if the outbox lacks a needed column."""
        is_outbox = relation.name == "outbox" and relation.namespace == self._schema
        reader = RowReader(relation, Message._fields, repeating=REPEATING) if is_outbox else None
        self._readers[relation.relation_id.to_bytes(4)] = reader

    def decode(self, insert: bytes) -> Message | None:
        """The message of an Insert; None for another table's row, and for one that cannot be decoded."""
        try:
            reader = self._readers[insert[1:5]]
        except KeyError:
            raise ProtocolError("a row of a relation that the server has not described") from None
        if reader is None:
            return None
        try:
            return Message._make(reader.read(insert))
        except ProtocolError as error:
            log.error("row_not_decoded", reason=str(error))
            return None
