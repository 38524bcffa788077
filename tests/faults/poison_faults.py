"""Poison messages: the broker closes the channel on which other messages are in flight."""

from __future__ import annotations

import os
import threading
from random import Random

from tests.faults.environment import Environment
from tests.faults.fault import Fault
from tests.faults.producer import CLOSING_POISON, Writer

MAX_MESSAGES = 6


class PoisonSent(Fault):
    """Several in one transaction. They are buried at the end; other messages in flight may be published again."""

    name = "poison that closes the channel"
    causes_duplicates = True
    lasts = (0.0, 2.0)
    touches = frozenset({"database"})

    def __init__(self, environment: Environment, choice: Random) -> None:
        super().__init__(environment, choice)
        self._kinds = choice.choices(CLOSING_POISON, k=choice.randint(1, MAX_MESSAGES))
        self._choice = Random(choice.random())
        self.target = ", ".join(self._kinds)

    def inject(self) -> None:
        with open(os.devnull, "wb") as nowhere, self.environment.connect(autocommit=False) as connection:  # noqa: PTH123
            writer = Writer(self._choice, threading.Event(), nowhere.fileno())
            for kind in self._kinds:
                writer.poison(connection, kind)

    def heal(self) -> None:
        """The services bury them."""


POISON_FAULTS = (PoisonSent,)
