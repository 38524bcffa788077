"""
The short descriptions of a task's arguments that its message carries for people (argsrepr, kwargsrepr).

Celery's own are made token by token, so that a huge or recursive value costs little, and take a sixth of the time of a
call. Most arguments are a few numbers and words, and for those the same text is made here in one go; `describe` gives
None for anything else, and Celery does it. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PLAIN = frozenset((int, float, bool, type(None)))


def describe(arguments: Any, longest: int | None) -> str | None:
    """What celery.utils.saferepr would make of flat, plain arguments whose text stays below `longest`."""
    kind = type(arguments)
    parts: list[str] = []
    if kind is dict:
        for name, value in arguments.items():
            text = _describe_one(value)
            if text is None or type(name) is not str:
                return None
            parts.append(f"{_quote(name)}: {text}")
        described = "{" + ", ".join(parts) + "}"
    elif kind is tuple or kind is list:
        for value in arguments:
            text = _describe_one(value)
            if text is None:
                return None
            parts.append(text)
        opening, closing = "[]" if kind is list else "()"
        described = opening + ", ".join(parts) + ("," if kind is tuple and len(parts) == 1 else "") + closing
    else:
        return None
    return described if longest is None or len(described) < longest else None


def _describe_one(value: Any) -> str | None:
    kind = type(value)
    if kind is str:
        return _quote(value)
    return str(value) if kind in _PLAIN else None


def _quote(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"


def describe_quickly(amqp: Any) -> Any:
    """Have this application's messages of protocol 2 described here where that is possible."""
    create: Callable[..., Any] = amqp.task_protocols[2]

    def create_task_message(
        task_id: str,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        *rest: Any,
        argsrepr: str | None = None,
        kwargsrepr: str | None = None,
        **options: Any,
    ) -> Any:
        if argsrepr is None:
            argsrepr = describe(args or (), amqp.argsrepr_maxsize)
        if kwargsrepr is None:
            kwargsrepr = describe(kwargs or {}, amqp.kwargsrepr_maxsize)
        return create(task_id, name, args, kwargs, *rest, argsrepr=argsrepr, kwargsrepr=kwargsrepr, **options)

    amqp.task_protocols[2] = create_task_message
    # Celery remembers the one in use.
    amqp.__dict__.pop("create_task_message", None)
    return amqp
