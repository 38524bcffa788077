"""
The column `declarations`: the queues and exchanges to declare before a message is published, as JSON.

Attributes with kombu's default value are left out. outrider.delivery.declarations is the inverse. An entry with a
`type` is an exchange, any other a queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import kombu.utils.json
from kombu import entity

from outrider.producer.encoding import check_json

# kombu is only half typed.
Exchange: Any = entity.Exchange
Queue: Any = entity.Queue
_dumps: Any = kombu.utils.json.dumps

MAX_RENDERED = 1_000
"""The cache is cleared at this size: queues can be made for a single call, as rpc:// does."""

# Attributes that only consumers use.
_NOT_DECLARED = ("alias", "consumer_arguments", "no_ack")


class Declarations:
    """
    Renders declarations, and caches the text of each queue and exchange object.

    By identity, as kombu declares an object once per connection: an object that is changed later is not rendered again.
    """

    def __init__(self) -> None:
        self._rendered: dict[int, tuple[Any, str]] = {}

    def render(self, entities: Iterable[Any]) -> str | None:
        """JSON, or None where there is nothing to declare. kombu also takes names here, which declare nothing."""
        entries = [self._render_once(each) for each in entities if isinstance(each, (Exchange, Queue))]
        return f"[{','.join(entries)}]" if entries else None

    def _render_once(self, declared: Any) -> str:
        known = self._rendered.get(id(declared))  # the object is kept alive, so that its id stays unique
        if known is None:
            if len(self._rendered) >= MAX_RENDERED:
                self._rendered.clear()
            text = _dumps(_render(declared), separators=(",", ":"), allow_nan=False)  # AMQP has no infinite numbers
            check_json("a declaration", text)
            known = self._rendered[id(declared)] = (declared, text)
        return known[1]


def _render(declared: Any) -> dict[str, Any]:
    if isinstance(declared, Exchange):
        return {"type": declared.type, **_exchange_attributes(declared)}
    attributes = _differences(declared, Queue)
    for name in _NOT_DECLARED:
        attributes.pop(name, None)
    attributes["exchange"] = _exchange(declared.exchange)
    attributes["bindings"] = [_binding(each) for each in declared.bindings or ()]
    # Empty values are defaults, except flags that are False: durable is True by default.
    return {name: value for name, value in attributes.items() if value or value is False}


def _binding(given: Any) -> dict[str, Any]:
    attributes = {"routing_key": given.routing_key, "arguments": given.arguments}
    return {"exchange": _exchange(given.exchange), **{name: value for name, value in attributes.items() if value}}


def _exchange(exchange: Any) -> Any:
    """The name alone, where all other attributes have their defaults."""
    if not isinstance(exchange, Exchange):
        return exchange or ""
    attributes = _exchange_attributes(exchange)
    return exchange.name if attributes.keys() <= {"name"} else attributes


def _exchange_attributes(exchange: Any) -> dict[str, Any]:
    # The delivery mode of an exchange is already a property of the message.
    attributes = _differences(exchange, Exchange)
    attributes.pop("delivery_mode", None)
    return attributes


def _differences(declared: Any, kind: Any) -> dict[str, Any]:
    # None means the default everywhere.
    return {
        name: getattr(declared, name)
        for name, _ in kind.attrs
        if name not in ("exchange", "bindings")
        and getattr(declared, name) is not None
        and getattr(declared, name) != getattr(kind, name, None)
    }
