"""
What a message wants declared, as JSON for the row: queues and exchanges, less what equals kombu's defaults.

The inverse is outbox.delivery.declarations. An entry with a `type` is an exchange, any other a queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import kombu.utils.json
from kombu import entity

# kombu is only half typed.
Exchange: Any = entity.Exchange
Queue: Any = entity.Queue
_dumps: Any = kombu.utils.json.dumps

MAX_RENDERED = 1_000
"""Queues can be made for a single call, as rpc:// does: what is remembered of them must not grow without bound."""

# What a queue is to its consumers is none of the broker's business.
_NOT_DECLARED = ("alias", "consumer_arguments", "no_ack")


class Declarations:
    """
    Renders declarations, each queue and exchange once.

    By identity, as kombu declares an object once per connection: one that is changed in place later is not rendered
    again.
    """

    def __init__(self) -> None:
        self._rendered: dict[int, tuple[Any, str]] = {}

    def render(self, entities: Iterable[Any]) -> str | None:
        """JSON, or None where nothing is to be declared. Names stand for themselves in kombu: they declare nothing."""
        entries = [self._render_once(each) for each in entities if isinstance(each, (Exchange, Queue))]
        return f"[{','.join(entries)}]" if entries else None

    def _render_once(self, declared: Any) -> str:
        known = self._rendered.get(id(declared))  # the object is kept too, so its id is not given to another
        if known is None:
            if len(self._rendered) >= MAX_RENDERED:
                self._rendered.clear()
            known = self._rendered[id(declared)] = (declared, _dumps(_render(declared), separators=(",", ":")))
        return known[1]


def _render(declared: Any) -> dict[str, Any]:
    if isinstance(declared, Exchange):
        return {"type": declared.type, **_exchange_attributes(declared)}
    attributes = _differences(declared, Queue)
    for name in _NOT_DECLARED:
        attributes.pop(name, None)
    attributes["exchange"] = _exchange(declared.exchange)
    attributes["bindings"] = [_binding(each) for each in declared.bindings or ()]
    # Empty is the default of everything but the flags that differ: durable=False must be said.
    return {name: value for name, value in attributes.items() if value or value is False}


def _binding(given: Any) -> dict[str, Any]:
    attributes = {"routing_key": given.routing_key, "arguments": given.arguments}
    return {"exchange": _exchange(given.exchange), **{name: value for name, value in attributes.items() if value}}


def _exchange(exchange: Any) -> Any:
    """A name where the name says it all."""
    if not isinstance(exchange, Exchange):
        return exchange or ""
    attributes = _exchange_attributes(exchange)
    return exchange.name if attributes.keys() <= {"name"} else attributes


def _exchange_attributes(exchange: Any) -> dict[str, Any]:
    # The delivery mode of an exchange is that of its messages, and already theirs.
    attributes = _differences(exchange, Exchange)
    attributes.pop("delivery_mode", None)
    return attributes


def _differences(declared: Any, kind: Any) -> dict[str, Any]:
    # durable is True by default and must be kept where it is False; None means the default everywhere.
    return {
        name: getattr(declared, name)
        for name, _ in kind.attrs
        if name not in ("exchange", "bindings")
        and getattr(declared, name) is not None
        and getattr(declared, name) != getattr(kind, name, None)
    }
