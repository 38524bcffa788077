"""
Event: a message as the application describes it, and the row that is written for it.

All values are checked here: a message that the database or the broker would refuse raises TypeError or ValueError
before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import count
from os import urandom
from typing import Any, Final, Literal, TypedDict
from uuid import UUID, uuid4

from outrider.producer.context import Context, CurrentContext
from outrider.producer.encoding import check_json, check_text, encode_json, encode_payload
from outrider.producer.row import Row, make_row
from outrider.settings.durations import parse_duration

Aggregate = tuple[str, object] | str
Delay = timedelta | float | str
"""Seconds, a timedelta, or text such as `90s` or `1h`."""
When = datetime | Delay


class _Default(Enum):
    AGGREGATE = "the aggregate"


AGGREGATE: Final = _Default.AGGREGATE
"""The default of `ordering_key`: an event is ordered with the others of its aggregate. None means no order."""


OrderingKey = str | Literal[_Default.AGGREGATE] | None


class EventOptions(TypedDict, total=False):
    """The keyword arguments of `Outbox.publish`, which documents them."""

    aggregate: Aggregate | None
    ordering_key: OrderingKey
    routing_key: str | None
    exchange: str | None
    headers: Mapping[str, Any] | None
    deliver_after: When | None
    expires: When | None
    dedup_key: str | None
    event_id: UUID | str | None


# Not frozen: one is made per message, and making a frozen one takes three times as long.
@dataclass(slots=True, kw_only=True)
class Event:
    """One message. The fields are those of `Outbox.publish`, which documents them, and `type_version`."""

    event_type: str
    payload: Any
    aggregate: Aggregate | None = None
    ordering_key: OrderingKey = AGGREGATE
    routing_key: str | None = None
    exchange: str | None = None
    headers: Mapping[str, Any] | None = None
    deliver_after: When | None = None
    expires: When | None = None
    dedup_key: str | None = None
    event_id: UUID | str | None = None
    type_version: int = 1
    """The version of the payload's schema. If it is not 1, the message has the header `type_version`."""

    subject: str | None = None
    """In event streams: the subject, usually a person, with whose key a SubjectEncryption encrypts the payload."""

    def row(
        self,
        *,
        exchange: str,
        context: Context | CurrentContext | None = None,
        event_id: UUID | None = None,
        expires: Delay | None = None,
    ) -> Row:
        """
        The row of this event. TypeError or ValueError where a value is not allowed.

        exchange  used where the event names none
        context   adds headers; the event's own headers take precedence
        event_id  the parsed `event_id` of the event, where the caller has it
        expires   used where the event has none
        """
        if self.subject is not None:
            raise ValueError("only an event of a stream can have a subject: nothing else is encrypted")
        text_id = str(parse_event_id(self.event_id) if event_id is None else event_id)
        aggregate_type, aggregate_id = split_aggregate(self.aggregate)
        payload, content_type, content_encoding = encode_payload(self.payload)
        headers: dict[str, Any] = (
            {} if aggregate_type is None else {"aggregate_type": aggregate_type, "aggregate_id": aggregate_id}
        )
        if self.type_version != 1:
            headers["type_version"] = _check_type_version(self.type_version)
        if context is not None:
            headers.update(context.headers(text_id))
        if self.headers:
            headers.update(self.headers)
            check_headers(self.headers)
        row = make_row(
            event_id=text_id,
            event_type=check_text("event_type", self.event_type, 1, 255),
            aggregate_type=aggregate_type,
            aggregate_id=aggregate_id,
            ordering_key=self._effective_ordering_key(aggregate_type, aggregate_id),
            exchange=check_text("exchange", exchange if self.exchange is None else self.exchange, 0, 255),
            routing_key=check_text(
                "routing_key", self.event_type if self.routing_key is None else self.routing_key, 0, 255
            ),
            payload=payload,
            content_type=content_type,
            content_encoding=content_encoding,
            headers=encode_headers(headers) if headers else "{}",
            context=None if context is None else context.log_context(),
        )
        if self.dedup_key is not None:
            row["dedup_key"] = check_text("dedup_key", self.dedup_key, 1, 1000)
        if self.deliver_after is not None:
            row["deliver_at"], row["deliver_in_seconds"] = split_moment("deliver_after", self.deliver_after)
        expiry = expires if self.expires is None else self.expires
        if expiry is not None:
            row["expires_at"], row["expires_in_seconds"] = split_moment("expires", expiry)
            if self.deliver_after is not None:
                check_expiry(self.deliver_after, expiry)
        return row

    def _effective_ordering_key(self, aggregate_type: str | None, aggregate_id: str | None) -> str | None:
        if self.ordering_key is AGGREGATE:
            # A delayed message has no order, and the application named no ordering key.
            if aggregate_type is None or self.deliver_after is not None:
                return None
            return check_text("the aggregate as ordering_key", f"{aggregate_type}:{aggregate_id}", 1, 1000)
        if self.ordering_key is None:
            return None
        if self.deliver_after is not None:
            raise ValueError("a delayed message cannot be ordered: give either deliver_after or ordering_key")
        return check_text("ordering_key", self.ordering_key, 1, 1000)


def split_aggregate(aggregate: Aggregate | None) -> tuple[str | None, str | None]:
    """("order", 42) and "order:42" are the same aggregate. The id may contain colons, the type not."""
    if aggregate is None:
        return None, None
    if isinstance(aggregate, str):
        kind, colon, identity = aggregate.partition(":")
        if not (kind and colon and identity):
            raise ValueError('an aggregate is ("order", 42) or "order:42"')
        return check_text("the aggregate's type", kind), check_text("the aggregate's id", identity)
    given: Any = aggregate
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError('an aggregate is ("order", 42) or "order:42"')
    kind, identity = check_text("the aggregate's type", given[0]), check_text("the aggregate's id", str(given[1]))
    if ":" in kind:
        raise ValueError("the aggregate's type must not contain a colon")
    return kind, identity


def split_moment(name: str, when: When | None) -> tuple[str | None, str | None]:
    """A point in time, or a number of seconds that the database adds to its own clock; as text, the other is None."""
    if when is None:
        return None, None
    moment = _parse_moment(name, when)
    return (moment.isoformat(), None) if isinstance(moment, datetime) else (None, repr(moment))


def check_expiry(deliver_after: When, expires: When) -> None:
    """ValueError for a message that would expire before it may be delivered."""
    now = datetime.now(UTC)  # only to compare a time with a delay: the database's clock decides when either has come
    due, end = (
        moment if isinstance(moment, datetime) else now + timedelta(seconds=moment)
        for moment in (_parse_moment("deliver_after", deliver_after), _parse_moment("expires", expires))
    )
    if end <= due:
        raise ValueError("expires must be later than deliver_after: the message would expire before it is delivered")


def _parse_moment(name: str, when: When) -> datetime | float:
    """A time in UTC, or a number of seconds."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"{name} needs a time zone: a naive datetime means a different instant on every machine")
        try:
            return when.astimezone(UTC)
        except OverflowError:
            raise ValueError(f"{name} must lie between the years 1 and 9999 in UTC") from None
    if isinstance(when, str):
        try:
            return parse_duration(when).seconds
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if isinstance(when, bool) or not isinstance(when, timedelta | int | float):
        raise TypeError(
            f"{name} is a datetime, a timedelta, seconds or text such as 90s, not {type(when).__qualname__}"
        )
    seconds = when.total_seconds() if isinstance(when, timedelta) else when
    if not 0 <= seconds <= 1e11:
        raise ValueError(f"{name} must not be negative, infinite or NaN")
    return float(seconds)


def parse_event_id(given: Any) -> UUID:
    """The given id as a UUID; a random one for None."""
    if given is None:
        return uuid4()
    if isinstance(given, UUID):
        return given
    if not isinstance(given, str):
        raise TypeError(f"event_id is a UUID or its text, not {type(given).__qualname__}")
    return UUID(given)


def parse_event_ids(given: Iterable[Any]) -> list[UUID]:
    """As parse_event_id, for many: all random ids come from one system call."""
    given = list(given)
    random = urandom(16 * len(given))
    return [
        UUID(int=int.from_bytes(random[start : start + 16]) & _RANDOM_BITS | _VERSION_4)
        if event_id is None
        else parse_event_id(event_id)
        for event_id, start in zip(given, count(0, 16), strict=False)
    ]


# RFC 9562: a random UUID has version 4 in four bits, and the variant in two.
_VERSION_4: Final = 4 << 76 | 2 << 62
_RANDOM_BITS: Final = (1 << 128) - 1 ^ (15 << 76 | 3 << 62)


def _check_type_version(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"type_version is an int, not {type(given).__qualname__}")
    if not 1 <= given <= 32_767:
        raise ValueError("type_version must lie between 1 and 32767")
    return given


def check_headers(headers: Mapping[str, Any]) -> None:
    """Names that AMQP can carry. `encode_headers` checks what is nested."""
    for name in headers:
        check_text("a header's name", name, 1, 255)


def encode_headers(headers: Mapping[str, Any]) -> str:
    text = encode_json(headers)
    check_json("a header", text)
    return text
