"""
Decode the inserts of the replication stream into messages, by the columns that the outbox table had at that point.

The WAL can be older or newer than the schema that this version knows. A column that the table did not have yet has the
value that ADD COLUMN gives to existing rows; a column that this version does not know is ignored. If the table lacks a
column without such a value, its rows are left to the scheduler: they are decoded as rows of the scheduler, with nothing
but the id and the ordering key, so that they block their key.

Inserts into other tables of the publication are skipped. A row that cannot be decoded is skipped with an error in the
log: it stays in the table and falls due for the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider.cdc_relay.pgoutput import Relation, RowReader
from outrider.errors import ProtocolError
from outrider.storage.message import COLUMN_DEFAULTS, Message
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

_UNREAD: Mapping[str, object] = {
    **COLUMN_DEFAULTS,
    "event_id": "",
    "event_type": "",
    "routing_key": "",
    "payload": b"",
    "created_at": 0,
    "next_attempt_at": 0,
}
"""What stands in a row that is left to the scheduler because of missing columns. Only its id is needed."""

_REMEDY = (
    "if the table has the columns now, the scheduler sends these rows; otherwise run `outrider setup` of this version, "
    "or the relay of the version that the schema belongs to (`outrider doctor` checks the columns)"
)


class RowDecoder:
    def __init__(self, schema: str) -> None:
        self._schema = schema
        # By the relation's id, as an insert has it. None: another table, or rows without a readable id.
        self._readers: dict[bytes, RowReader | None] = {}
        self._unreadable: set[bytes] = set()

    def set_relation(self, relation: Relation) -> None:
        """Use these columns for the next rows of the table."""
        key = relation.relation_id.to_bytes(4)
        self._readers[key] = None
        self._unreadable.discard(key)
        if relation.name != "outbox" or relation.namespace != self._schema:
            return
        try:
            self._readers[key] = _reader(relation, COLUMN_DEFAULTS)
        except ProtocolError as error:
            log.error("relation_not_readable", reason=str(error), remedy=_REMEDY)
            self._unreadable.add(key)
            if any(column.name == "id" for column in relation.columns):
                self._readers[key] = _reader(relation, _UNREAD)

    def decode(self, insert: bytes) -> Message | None:
        """The message of an Insert; None for another table's row, and for one that cannot be decoded."""
        key = insert[1:5]
        try:
            reader = self._readers[key]
        except KeyError:
            raise ProtocolError("a row of a relation that the server has not described") from None
        if reader is None:
            return None
        try:
            message = Message._make(reader.read(insert))
        except ProtocolError as error:
            log.error("row_not_decoded", reason=str(error))
            return None
        return message._replace(owner="scheduler") if key in self._unreadable else message


def _reader(relation: Relation, defaults: Mapping[str, object]) -> RowReader:
    return RowReader(relation, Message._fields, repeating=REPEATING, defaults=defaults)
