"""
Aggregate: an object whose state is built from the events of one stream.

    @dataclass
    class Account(Aggregate):
        balance: int = 0

        def deposit(self, amount: int) -> None:  # a command: decides, and records what happened
            if amount <= 0:
                raise ValueError("deposit a positive amount")
            self.record(Deposited(amount))

        def apply(self, event: Any) -> None:  # a change of state: never refuses
            match event:
                case Deposited(amount):
                    self.balance += amount

A Repository loads and saves it. Its events are instances of classes that are registered in the streams' EventTypes. An
aggregate is created without arguments. With snapshots it is a dataclass, whose fields are the snapshot, or it has
`snapshot` and `restore` of its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from outrider.producer.from_json import from_json


class Aggregate:
    id: str
    """The part of the stream's name behind the category."""
    version: int = 0
    """Of the stream, without the events that are not saved yet."""

    def apply(self, event: Any) -> None:
        """Change the state as the event says: one that was just recorded, or one that was loaded."""
        raise NotImplementedError

    def record(self, event: Any) -> None:
        """Apply an event, and append it with the next save."""
        self.apply(event)
        self.recorded.append(event)

    @property
    def recorded(self) -> list[Any]:
        """The events that are not saved yet."""
        recorded: list[Any] = self.__dict__.setdefault("_recorded", [])
        return recorded

    def snapshot(self) -> Any:
        """The state, for a snapshot."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}  # type: ignore[arg-type]

    def restore(self, state: Any) -> None:
        """Take over the state of a snapshot: a new aggregate that has applied no event."""
        self.__dict__.update(vars(from_json(type(self), state)))
