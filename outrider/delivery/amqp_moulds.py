"""
Moulds: the encoded properties of a message, to be cast again for the next message of its kind.

Messages of a type are alike but for a few strings: their ids, and what their headers say. To encode one from its row,
JSON is parsed into values of which nearly all are the same as in the message before, and these are encoded as before. A
mould is made from one message that went that way. It knows the text around the strings in the JSON columns of the row,
as a regular expression, and the bytes around them in the encoded properties; where the next row has the same text, only
its strings are taken from the one and put into the other, at a third of the price. A row with any other text, or with a
string that JSON had to escape, goes the long way, and so does whatever depends on the moment of sending.

What comes out equals what the long way makes of the same row, byte for byte; a property test holds it to that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, Self

from outrider.delivery.amqp_properties import PropertiesEncoder
from outrider.delivery.broker_message import POSTGRES_EPOCH_IN_UNIX_SECONDS, BrokerMessage, parse_object
from outrider.storage.message import Message

MAX_MOULDS: Final = 1_000
MAX_MISSES: Final = 1_000
"""A mould that has missed so often is made anew, from what came last. Making one takes about a millisecond."""

MAX_TEXT_BYTES: Final = 8_192

_COMPACT: Final = (",", ":")  # as our producers write JSON
_SPACED: Final = (", ", ": ")  # as most others do
_STRING: Final = r'"([^"\\]*+)"'  # without escapes: its bytes are what it means
_LONGEST_SHORT_STRING: Final = 255
_SHORT_SIZE: Final = Struct("B").pack
_SIZE: Final = Struct(">I").pack
_SIZE_BYTES: Final = 4


class Moulds:
    """The moulds of one publisher, by type of message."""

    def __init__(self, encoder: PropertiesEncoder) -> None:
        self._encoder = encoder
        self._moulds: dict[str, Mould | _NoMould] = {}

    def cast(self, message: Message) -> bytes | None:
        """The encoded properties; None where the row must go the long way."""
        mould = self._moulds.get(message.event_type)
        if mould is None or not _is_plain(message):
            return None
        properties = mould.cast(message)
        if properties is None:
            mould.misses += 1
        return properties

    def learn(self, message: Message, wire: BrokerMessage) -> None:
        """A message went the long way, and this came of it: keep it, if the next one needs it."""
        known = self._moulds.get(message.event_type)
        if (known is not None and known.misses < MAX_MISSES) or not _is_plain(message):
            return
        if len(self._moulds) >= MAX_MOULDS:
            self._moulds.clear()
        # A mould is made at the second sight of a type: one that is never seen again is not worth it.
        mould = _NoMould(MAX_MISSES - 1) if known is None else self._mould(message, wire)
        self._moulds[message.event_type] = mould

    def _mould(self, message: Message, wire: BrokerMessage) -> Mould | _NoMould:
        try:
            return Mould.of(message, wire, self._encoder) or _NoMould(0)
        except Exception:
            return _NoMould(0)  # nested too deeply, say: the message itself was encoded, and is to be sent


def _is_plain(message: Message) -> bool:
    """Whether what is sent depends on nothing but the row's own text."""
    return message.expires_at is None and message.context is None and "celery_delayed_" not in message.exchange


Find = Callable[[str | bytes], Sequence[bytes] | None]
"""The strings that are values in the text of a JSON object; None if the text is not as expected."""


def pattern_of(text: str | bytes, value: dict[str, Any]) -> Find | None:
    """What finds the strings in texts that differ from this one in nothing else; None if it is oddly written."""
    if len(text) > MAX_TEXT_BYTES or b"\\" in (text.encode() if isinstance(text, str) else text):
        return None
    strings = tuple(item.encode() for item in value.values() if type(item) is str)
    for separators in (_COMPACT, _SPACED):
        find = _pattern(value, separators)
        if find(text) == strings:
            return find
    return None


def _pattern(value: dict[str, Any], separators: tuple[str, str]) -> Find:
    comma, colon = separators
    items = [
        re.escape(json.dumps(name) + colon)
        + (_STRING if type(item) is str else re.escape(json.dumps(item, separators=separators)))
        for name, item in value.items()
    ]
    fullmatch = re.compile(rf"\{{{re.escape(comma).join(items)}\}}".encode()).fullmatch

    def find(text: str | bytes) -> Sequence[bytes] | None:
        match = fullmatch(text.encode() if isinstance(text, str) else text)
        return None if match is None or not _is_utf8(text) else match.groups()

    return find


def _is_utf8(text: str | bytes) -> bool:
    """A database in SQL_ASCII takes any bytes."""
    if not text.isascii() and isinstance(text, bytes):
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
    return True


class Mould:
    """What the properties of messages of a type have in common, in pieces; and which of the pieces are the row's."""

    __slots__ = (
        *("_content_encoding", "_content_type", "_encoder", "_given", "_headers", "_headers_size", "_headers_slots"),
        *("_pieces", "_short_slots", "_size_slot", "_timestamp_slot", "misses"),
    )

    def __init__(self, message: Message, encoder: PropertiesEncoder, headers: Find, given: Find) -> None:
        self.misses = 0
        self._encoder = encoder
        self._headers = headers
        self._given = given
        self._content_type = message.content_type
        self._content_encoding = message.content_encoding
        self._pieces: list[bytes] = [b""]
        self._size_slot = self._timestamp_slot = self._headers_size = 0
        self._headers_slots: list[int] = []
        self._short_slots: list[int] = []
        """Of the strings among the row's properties, and at last of its id."""

    @classmethod
    def of(cls, message: Message, wire: BrokerMessage, encoder: PropertiesEncoder) -> Self | None:
        """A mould from a message that was encoded; None if none can be made of it."""
        given = parse_object(message.properties, "properties")
        # A time to live runs, an id or a time of the message's own is not the row's, marked values are others than
        # they seem.
        if not given.keys().isdisjoint(("expiration", "message_id", "timestamp")) or "__type__" in (
            f"{message.headers!s}{message.properties!s}"
        ):
            return None
        headers_pattern = pattern_of(message.headers, wire.headers)
        given_pattern = pattern_of(message.properties, given)
        if headers_pattern is None or given_pattern is None:
            return None
        mould = cls(message, encoder, headers_pattern, given_pattern)
        return mould if mould._fill(wire, given) else None

    def cast(self, message: Message) -> bytes | None:
        """The encoded properties of another message of the type; None if it differs in more than strings."""
        if message.content_type != self._content_type or message.content_encoding != self._content_encoding:
            return None
        headers = self._headers(message.headers)
        given = self._given(message.properties)
        if headers is None or given is None:
            return None
        pieces = self._pieces.copy()
        size = self._headers_size
        for slot, text in zip(self._headers_slots, headers, strict=True):
            pieces[slot] = _SIZE(len(text))
            pieces[slot + 1] = text
            size += len(text)
        pieces[self._size_slot] = _SIZE(size)
        for slot, text in zip(self._short_slots, (*given, message.event_id.encode()), strict=True):
            if len(text) > _LONGEST_SHORT_STRING:
                return None
            pieces[slot] = _SHORT_SIZE(len(text))
            pieces[slot + 1] = text
        seconds = message.created_at // 1_000_000 + POSTGRES_EPOCH_IN_UNIX_SECONDS
        if seconds < 0:
            return None
        pieces[self._timestamp_slot] = self._encoder.value("L", seconds)
        return b"".join(pieces)

    def _fill(self, wire: BrokerMessage, given: dict[str, Any]) -> bool:
        """Lay out the pieces. False if AMQP has no such property as one of the row's."""
        slots: dict[str, int] = {}
        flags, plan = self._encoder.plan_for(wire.properties)
        self._add(flags)
        for name, kind in plan:
            if kind == "F":
                self._size_slot = self._add_slots(1)
                self._fill_headers(wire.headers)
            elif name == "timestamp":
                self._timestamp_slot = self._add_slots(1)
            elif name == "message_id" or type(given.get(name)) is str:
                slots[name] = self._add_slots(2)
            else:
                self._add(self._encoder.value(kind, wire.properties[name]))
        strings = [name for name, value in given.items() if type(value) is str]
        self._short_slots = [slots[name] for name in (*strings, "message_id") if name in slots]
        return len(self._short_slots) == len(strings) + 1

    def _fill_headers(self, headers: dict[str, Any]) -> None:
        for name, value in headers.items():
            constant = self._encoder.name(name) + (b"S" if type(value) is str else self._encoder.item(value))
            self._add(constant)
            self._headers_size += len(constant)
            if type(value) is str:
                self._headers_slots.append(self._add_slots(2))  # for its size, and itself
                self._headers_size += _SIZE_BYTES

    def _add(self, constant: bytes) -> None:
        self._pieces[-1] += constant

    def _add_slots(self, count: int) -> int:
        """Room for pieces of the row's; the first one's index. Constants follow behind."""
        first = len(self._pieces)
        self._pieces += [b""] * (count + 1)
        return first


class _NoMould:
    """For messages of which no mould can be made: they are not looked at again until there were enough of them."""

    __slots__ = ("misses",)

    def __init__(self, misses: int) -> None:
        self.misses = misses

    def cast(self, message: Message) -> bytes | None:  # noqa: ARG002
        return None
