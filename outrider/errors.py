"""
The exception tree: everything that Outrider raises on purpose.

A message tells an operator or a developer what to do next, in one line. Commands print it as it is, without a
traceback; anything that is not an OutboxError is a bug.
"""

from __future__ import annotations


class OutboxError(Exception):
    """The root of the tree."""


class SettingsError(OutboxError):
    """One or more settings are wrong; every mistake is named."""


class DatabaseError(OutboxError):
    """PostgreSQL could not be reached, or refused a statement."""

    def __init__(self, message: str, *, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class SetupError(DatabaseError):
    """The database lacks something the outbox needs: wal_level, a table, a publication, a privilege."""


class ReplicationError(DatabaseError):
    """The replication connection failed, or the server refused a replication command."""


class ProtocolError(OutboxError):
    """Bytes that are not what the pgoutput protocol says they must be."""


class BrokerError(OutboxError):
    """The root of what a broker can do to us; outbox.failures tells the kinds apart."""


class BrokerOutage(BrokerError):
    """The broker cannot be reached or does not answer: no message is to blame."""


class MessageRefused(BrokerError):
    """The broker answered, and refused this one message."""


class UndecodableMessage(OutboxError):
    """A row that cannot be turned into a message, now or later: it belongs to the dead letters."""


class ConcurrencyError(OutboxError):
    """Somebody else appended to the event stream first."""

    def __init__(self, stream: str, expected: int, actual: int) -> None:
        super().__init__(f"stream {stream!r} is at version {actual}, not at {expected}: load it again and retry")
        self.stream = stream
        self.expected = expected
        self.actual = actual
