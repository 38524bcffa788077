"""
EventTypes: the classes of an application's events, and how events of older versions become newer ones.

    types = EventTypes()

    @types.event("account.opened", version=2)
    @dataclass(frozen=True)
    class Opened:
        owner: str
        currency: str

    @types.upcaster("account.opened", version=1)  # from version 1 to 2
    def add_currency(data):
        return {**data, "currency": "EUR"}

    streams = EventStreams(outbox, types=types)
    streams.append(connection, "account:7", [Opened("Ada", "EUR")])
    streams.load(connection, "account:7")[0].data  # Opened(owner="Ada", currency="EUR")

Classes are dataclasses or Pydantic models. Events that are not registered stay plain. The log is never rewritten: an
event is upcast whenever it is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from outrider.producer.encoding import check_text
from outrider.producer.event import Event
from outrider.producer.from_json import from_json

T = TypeVar("T")
Upcast = Callable[[Any], Any]
Subject = Callable[[Any], str | None]


@dataclasses.dataclass(frozen=True, slots=True)
class EventType:
    """A registered class."""

    name: str
    version: int
    kind: type[Any]
    subject: Subject | None


class EventTypes:
    def __init__(self) -> None:
        self._by_kind: dict[type[Any], EventType] = {}
        self._by_name: dict[str, EventType] = {}
        self._upcasters: dict[tuple[str, int], Upcast] = {}

    def event(
        self, event_type: str, *, version: int = 1, subject: Subject | None = None
    ) -> Callable[[type[T]], type[T]]:
        """
        Register a dataclass or Pydantic model, as a decorator.

        version  the version of its fields: what `append` writes, and to what older events are upcast
        subject  a function from an event to the subject with whose key its payload is encrypted (see SubjectEncryption)
        """
        check_text("event_type", event_type, 1, 255)

        def register(kind: type[T]) -> type[T]:
            if not (dataclasses.is_dataclass(kind) or hasattr(kind, "model_validate")):
                raise TypeError(f"{kind.__qualname__} is neither a dataclass nor a Pydantic model")
            if event_type in self._by_name or kind in self._by_kind:
                raise ValueError(f"{event_type} or {kind.__qualname__} is registered already")
            self._by_kind[kind] = self._by_name[event_type] = EventType(event_type, version, kind, subject)
            return kind

        return register

    def upcaster(self, event_type: str, *, version: int) -> Callable[[Upcast], Upcast]:
        """Register a function from the data of this version to that of the next one, as a decorator."""

        def register(upcast: Upcast) -> Upcast:
            if (event_type, version) in self._upcasters:
                raise ValueError(f"{event_type} has an upcaster from version {version} already")
            self._upcasters[event_type, version] = upcast
            return upcast

        return register

    def to_event(self, value: Any, **options: Any) -> Event:
        """The Event of an instance of a registered class; options are other fields of Event. TypeError for others."""
        registered = self._by_kind.get(type(value))
        if registered is None:
            raise TypeError(
                f"{type(value).__qualname__} is not registered: an event is an Event, a mapping or registered"
            )
        if registered.subject is not None:
            options.setdefault("subject", registered.subject(value))
        return Event(event_type=registered.name, type_version=registered.version, payload=value, **options)

    def decode(self, event_type: str, type_version: int, data: Any) -> Any:
        """
        The data of an event, upcast as far as there are upcasters, as an instance of its class where it is registered.
        ValueError if a registered class needs an upcaster that is missing.
        """
        while upcast := self._upcasters.get((event_type, type_version)):
            data, type_version = upcast(data), type_version + 1
        registered = self._by_name.get(event_type)
        if registered is None:
            return data
        if type_version < registered.version:
            raise ValueError(f"{event_type} has no upcaster from version {type_version}")
        return from_json(registered.kind, data)


def as_event(types: EventTypes | None, given: Any) -> Event:
    """What `append` accepts: an Event, a mapping of its fields, or an instance of a registered class."""
    if isinstance(given, Event):
        return given
    if isinstance(given, Mapping):
        return Event(**given)
    return (types or EventTypes()).to_event(given)
