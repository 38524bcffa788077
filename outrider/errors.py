"""
The exceptions of Outrider. All are subclasses of OutboxError.

A message is one line that says what to do next. Commands print it without a traceback; any other exception is a bug.
"""

from __future__ import annotations


class OutboxError(Exception):
    """The base class of all."""


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
    """Bytes that do not follow the pgoutput protocol."""


class BrokerError(OutboxError):
    """A failure of the broker; outrider.failures classifies it."""


class BrokerOutage(BrokerError):
    """The broker cannot be reached or does not answer. No message is the cause."""


class UndecodableMessage(OutboxError):
    """A row that can never be decoded into a message: it becomes a dead letter."""


class ConcurrencyError(OutboxError):
    """Another writer has appended to the event stream first."""

    def __init__(self, stream: str, expected: int, actual: int) -> None:
        super().__init__(f"stream {stream!r} is at version {actual}, not at {expected}: load it again and retry")
        self.stream = stream
        self.expected = expected
        self.actual = actual


class EventIdError(OutboxError):
    """An append names the event_id of another event that is in the log."""

    def __init__(self, stream: str, event_ids: list[str]) -> None:
        super().__init__(
            f"events with these ids are in the log, and they are not the ones appended to {stream!r}: "
            + ", ".join(event_ids)
        )
        self.stream = stream
        self.event_ids = event_ids


class SubjectForgotten(OutboxError):
    """The key of a subject was deleted (`outrider forget`): nothing can be encrypted for it."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"the subject {subject!r} was forgotten: it has no key")
        self.subject = subject


class EpochError(OutboxError):
    """The log of event streams was restored from another server, whose transaction ids are larger."""

    def __init__(self) -> None:
        super().__init__(
            "the log of event streams was restored from another server, so new events would sort before old ones: run "
            "`outrider events new-epoch`"
        )
