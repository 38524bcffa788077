"""Moulds: what they cast equals what the long way makes of the same row, byte for byte, or is nothing at all."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.delivery.amqp_moulds import MAX_MISSES, MAX_MOULDS, MAX_TEXT_BYTES, Moulds
from outrider.delivery.amqp_properties import PropertiesEncoder
from outrider.delivery.broker_message import to_broker_message
from outrider.errors import UndecodableMessage
from outrider.storage.message import Message
from tests.fixtures.messages import NOW, make_message

CELERY_HEADERS: dict[str, Any] = {
    "lang": "py",
    "task": "shop.bill",
    "id": "a",
    "shadow": None,
    "retries": 0,
    "timelimit": [None, None],
    "argsrepr": "(1, 'x')",
    "ignore_result": True,
    "stamps": {},
}
CELERY_PROPERTIES: dict[str, Any] = {"correlation_id": "a", "reply_to": "b", "delivery_mode": 2, "priority": 0}

texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | texts | st.lists(st.none() | texts, max_size=2)
ways_to_write: list[dict[str, Any]] = [
    {"separators": (",", ":")},
    {},
    {"ensure_ascii": False, "separators": (",", ":")},
    {"indent": 1},
]


class Publisher:
    """As the publisher does it: by a mould if there is one, else the long way, from which a mould is made."""

    def __init__(self) -> None:
        self.encoder = PropertiesEncoder()
        self.moulds = Moulds(self.encoder)

    def encode(self, message: Message) -> tuple[bytes, bool]:
        """The properties, and whether a mould gave them."""
        cast = self.moulds.cast(message)
        if cast is not None:
            return cast, True
        return self.encode_by_the_long_way(message), False

    def learn_task(self) -> None:
        while not self.encode(task())[1]:
            pass

    def encode_by_the_long_way(self, message: Message) -> bytes:
        wire = to_broker_message(message, NOW)
        encoded = PropertiesEncoder().encode(wire)
        self.moulds.learn(message, wire)
        return encoded


def long_way(message: Message) -> bytes:
    return PropertiesEncoder().encode(to_broker_message(message, NOW))


def task(**changes: Any) -> Message:
    columns = {"headers": CELERY_HEADERS, "properties": CELERY_PROPERTIES, **changes}
    for name in ("headers", "properties"):
        columns[name] = json.dumps(columns[name], separators=(",", ":"))
    return make_message(event_type="shop.bill", **columns)


@given(st.data())
def test_a_cast_equals_the_long_way(data: st.DataObject) -> None:
    publisher = Publisher()
    # What all messages have in common: they differ in what it says, and seldom in kind.
    common = data.draw(st.dictionaries(texts, values, max_size=5))
    given = data.draw(st.dictionaries(st.sampled_from(["correlation_id", "reply_to", "type", "x-own"]), texts))
    way = data.draw(st.sampled_from(ways_to_write))
    for _ in range(4):
        headers = {
            name: data.draw(texts if isinstance(value, str) else st.just(value) | values)
            for name, value in common.items()
        }
        properties = {name: data.draw(texts) for name in given}
        message = make_message(
            headers=json.dumps(headers, **way),
            properties=json.dumps(properties, **way).encode(),
            created_at=NOW + data.draw(st.integers(0, 10**7)),
        )
        assert publisher.encode(message)[0] == long_way(message)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_messages_are_cast_once_their_type_was_seen_twice(as_bytes: bool) -> None:
    publisher = Publisher()
    for number, is_cast in enumerate([False, False, True, True]):
        headers = json.dumps(
            CELERY_HEADERS | {"id": f"id-{number}", "argsrepr": "Käthe"}, ensure_ascii=False, separators=(",", ":")
        )
        message = make_message(
            headers=headers.encode() if as_bytes else headers,
            properties=CELERY_PROPERTIES | {"correlation_id": f"id-{number}"},
        )
        assert publisher.encode(message) == (long_way(message), is_cast)


@pytest.mark.parametrize(
    "changes",
    [
        {"headers": CELERY_HEADERS | {"retries": 1}},
        {"headers": CELERY_HEADERS | {"shadow": "other"}},
        {"headers": CELERY_HEADERS | {"stamps": {"a": "b"}}},
        {"headers": CELERY_HEADERS | {"argsrepr": 'a "quoted" one'}},
        {"headers": CELERY_HEADERS | {"argsrepr": "a\\backslash"}},
        {"headers": CELERY_HEADERS | {"argsrepr": "Käthe"}},
        {"headers": CELERY_HEADERS | {"more": "of them"}},
        {"headers": {}},
        {"properties": CELERY_PROPERTIES | {"priority": 9}},
        {"properties": CELERY_PROPERTIES | {"expiration": 60}},
        {"properties": CELERY_PROPERTIES | {"message_id": "own"}},
        {"content_type": "text/plain"},
        {"content_encoding": "binary"},
        {"expires_at": NOW + 10_000_000},
        {"context": '{"request": 1}'},
    ],
    ids=str,
)
def test_a_message_that_differs_in_more_than_strings_goes_the_long_way(changes: dict[str, Any]) -> None:
    publisher = Publisher()
    publisher.learn_task()
    message = task(**changes)
    assert publisher.encode(message) == (long_way(message), False)
    assert publisher.encode(task())[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"properties": {"expiration": 60}},
        {"properties": {"message_id": "own"}},
        {"properties": {"x-own": "unknown to AMQP"}},
        {"headers": {"when": {"__type__": "datetime", "__value__": "2026-11-18T00:00:00"}}},
        {"headers": {"long": "x" * MAX_TEXT_BYTES}},
        {"expires_at": NOW + 10_000_000},
        {"context": '{"request": 1}'},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_no_mould_is_made_of_what_depends_on_more_than_the_text(changes: dict[str, Any]) -> None:
    publisher = Publisher()
    for _ in range(3):
        message = task(**changes)
        assert publisher.encode(message) == (long_way(message), False)


def test_a_string_that_is_too_long_for_amqp_is_refused_as_by_the_long_way() -> None:
    publisher = Publisher()
    publisher.learn_task()
    message = task(properties=CELERY_PROPERTIES | {"correlation_id": "x" * 256})
    assert publisher.moulds.cast(message) is None
    with pytest.raises(UndecodableMessage):
        publisher.encode(message)


@pytest.mark.parametrize(
    "changes",
    [{"created_at": -(10**15)}, {"headers": json.dumps(CELERY_HEADERS | {"id": "?"}).encode().replace(b"?", b"\xff")}],
    ids=["before 1970", "not UTF-8"],
)
def test_what_the_long_way_refuses_is_not_cast(changes: dict[str, Any]) -> None:
    publisher = Publisher()
    for _ in range(3):
        publisher.encode(make_message(headers=CELERY_HEADERS))
    message = make_message(headers=CELERY_HEADERS)._replace(**changes)
    assert publisher.moulds.cast(message) is None
    with pytest.raises(UndecodableMessage):
        publisher.encode(message)


def test_a_message_that_can_be_encoded_is_never_refused_for_the_sake_of_its_mould() -> None:
    """To make a mould takes more of the stack than to encode: there are depths at which only the latter works."""
    without = []
    for depth in range(sys.getrecursionlimit() // 4, sys.getrecursionlimit()):
        moulds = Moulds(PropertiesEncoder())
        message = make_message(headers='{"deep":' + '{"a":' * depth + "1" + "}" * depth + "}")
        try:
            wire = to_broker_message(message, NOW)
            PropertiesEncoder().encode(wire)
        except UndecodableMessage:
            break
        moulds.learn(message, wire)
        moulds.cast(message)
        moulds.learn(message, wire)
        without.append(moulds.cast(message) is None)
    assert any(without)
    assert not all(without)


def test_a_mould_that_nothing_fits_any_more_is_made_anew() -> None:
    publisher = Publisher()
    publisher.learn_task()
    changed = CELERY_HEADERS | {"retries": 1}
    assert [publisher.encode(task(headers=changed))[1] for _ in range(MAX_MISSES + 1)] == [False] * MAX_MISSES + [True]


def test_the_number_of_moulds_is_bounded() -> None:
    publisher = Publisher()
    for number in range(2 * MAX_MOULDS + 1):
        for _ in range(2):
            publisher.encode(make_message(event_type=f"type-{number}"))
    assert len(publisher.moulds._moulds) <= MAX_MOULDS
