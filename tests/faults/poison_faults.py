"""Poison messages that affect others: the broker closes the channel or the connection on which they are in flight."""

from __future__ import annotations

import os
import threading
from random import Random
from typing import ClassVar

from tests.faults.environment import Environment
from tests.faults.fault import Fault
from tests.faults.producer import CLOSING_POISON, FATAL_POISON, Writer


class _Poison(Fault):
    """Several in one transaction. They are buried at the end; other messages in flight may be published again."""

    causes_duplicates = True
    kinds: ClassVar[tuple[str, ...]]
    max_messages: ClassVar[int]

    def __init__(self, environment: Environment, choice: Random) -> None:
        super().__init__(environment, choice)
        self._kinds = choice.choices(self.kinds, k=choice.randint(1, self.max_messages))
        self._choice = Random(choice.random())
        self.target = ", ".join(self._kinds)

    def inject(self) -> None:
        with open(os.devnull, "wb") as nowhere, self.environment.connect(autocommit=False) as connection:  # noqa: PTH123
            writer = Writer(self._choice, threading.Event(), nowhere.fileno())
            for kind in self._kinds:
                writer.poison(connection, kind)

    def heal(self) -> None:
        """The services bury them."""


class ChannelPoison(_Poison):
    name = "poison that closes the channel"
    lasts = (0.0, 2.0)
    touches = frozenset({"database"})
    kinds = CLOSING_POISON
    max_messages = 6


class ConnectionPoison(_Poison):
    """The proxies reset the connection on which it is sent, each time."""

    name = "poison that ends the connection"
    lasts = (1.0, 4.0)
    touches = frozenset({"database", "relays to broker", "schedulers to broker"})
    kinds = FATAL_POISON
    max_messages = 3


POISON_FAULTS = (ChannelPoison, ConnectionPoison)
