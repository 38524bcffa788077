"""
A function of this process that is called with the messages that the broker confirmed.

For programs that run a service inside their own process, such as `manage.py outbox_relay`. The function is called on
the service's thread: it must return at once and raise nothing. There is at most one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from outrider.storage.message import Message

Listener = Callable[[Iterable[Message]], None]

_listener: Listener | None = None


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside the block, the function is called."""
    global _listener
    _listener = listener
    try:
        yield
    finally:
        _listener = None


def report_delivered(messages: Iterable[Message]) -> None:
    if _listener is not None:
        _listener(messages)
